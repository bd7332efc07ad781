package kernellog

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-dra/driver/pkg/pci"
)

func at(text string) pci.Address {
	a, err := pci.Parse(text)
	if err != nil {
		panic(err)
	}
	return a
}

func TestParse(t *testing.T) {
	gpu := at("0000:c1:00.0")
	for record, want := range map[string]Message{
		"3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.":            {gpu, 79, -1},
		"4,1,2,c,caller=T12;NVRM: Xid (PCI:0000:C1:00): 13, pid=12, name=python, Graphics SM Warp Exception":                      {gpu, 13, -1},
		"3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 94, pid=1, Contained":                                               {gpu, 94, 5},
		"3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00 GPU-I:05 GPU-CI:01): 43, pid=1":                                                {gpu, 43, 5},
		"3,339,5140900,-;NVRM: Xid (PCI:00000000:c1:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)":         {gpu, 154, -1},
		"3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00.0): 48, pid=1":                                                                 {gpu, 48, -1},
		"3,339,5140900,-;NVRM: Xid (PCI:000a:01:00): 119, pid=1, Timeout after 6s of waiting for RPC response from GPU0 GSP!":     {at("000a:01:00.0"), 119, -1},
		"7,339,5140900,-;NVRM: Xid (PCI:0000:c1:00): 31, pid=1, name=NVRM: Xid (PCI, Ch 00000008, intr 00000000. MMU Fault: x\tx": {gpu, 31, -1},
	} {
		got, ok := Parse([]byte(record))
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%q: %t (-want +got):\n%s", record, ok, diff)
		}
	}
	for what, record := range map[string]string{
		"a program's":         "12,339,5140900,-;NVRM: Xid (PCI:0000:c1:00): 79, pid=1",
		"no priority":         "NVRM: Xid (PCI:0000:c1:00): 79, pid=1",
		"a bad priority":      "x,1,1,-;NVRM: Xid (PCI:0000:c1:00): 79, pid=1",
		"within another":      "3,339,5140900,-;audit: comm=\"NVRM: Xid (PCI:0000:c1:00): 79, pid=1\"",
		"a continuation line": " SUBSYSTEM=pci;NVRM: Xid (PCI:0000:c1:00): 79, pid=1",
		"another of NVRM's":   "3,339,5140900,-;NVRM: GPU at PCI:0000:c1:00: GPU-1",
		"a bad address":       "3,339,5140900,-;NVRM: Xid (PCI:0000:c1): 79, pid=1",
		"no such device":      "3,339,5140900,-;NVRM: Xid (PCI:0000:c1:7f): 79, pid=1",
		"no number":           "3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00): many, pid=1",
		"zero":                "3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00): 0, pid=1",
		"a long number":       "3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00): 12345678901, pid=1",
		"cut off":             "3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00): 7",
		"empty":               "",
	} {
		if m, ok := Parse([]byte(record)); ok {
			t.Errorf("%s: %q gave %+v", what, record, m)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("3,339,5140900,-;NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 94, pid=1, Contained"))
	f.Add([]byte("12,1,1,-;NVRM: Xid (PCI:0000:c1:00): 79, pid=1"))
	f.Add([]byte(";NVRM: Xid (PCI:"))
	f.Fuzz(func(t *testing.T, record []byte) {
		m, ok := Parse(record)
		if !ok {
			return
		}
		if m.XID <= 0 || m.Instance < -1 || m.GPU.Function > 7 || !strings.Contains(string(record), ";NVRM: Xid (PCI:") {
			t.Errorf("%q gave %+v", record, m)
		}
	})
}

func BenchmarkParseOther(b *testing.B) {
	record := []byte("6,1234,987654321,-;systemd[1]: Started something that has nothing to do with any GPU of this machine.")
	for b.Loop() {
		Parse(record)
	}
}
