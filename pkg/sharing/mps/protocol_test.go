package mps_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/sharing/mps"
)

func specs() *rapid.Generator[mps.Spec] {
	return rapid.Custom(func(t *rapid.T) mps.Spec {
		s := mps.Spec{MultiUser: rapid.Bool().Draw(t, "multiUser")}
		for range rapid.IntRange(1, 4).Draw(t, "devices") {
			s.Devices = append(s.Devices, mps.Device{
				UUID:            rapid.StringMatching(`(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}`).Draw(t, "uuid"),
				PinnedMemoryMiB: rapid.Int64Range(0, 1<<20).Draw(t, "memory"),
			})
		}
		if rapid.Bool().Draw(t, "limited") {
			p := rapid.IntRange(0, 100).Draw(t, "threads")
			s.ActiveThreadPercentage = &p
		}
		return s
	})
}

// What is written is read, and valid.
func TestMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := specs().Draw(t, "spec")
		in := mps.Request{Version: 1, Op: mps.OpEnsure, Name: "gpu-0000-1a-00-0-mig-1g-10gb-0", Spec: &spec, TimeoutMillis: 7}
		var wire bytes.Buffer
		if err := mps.Write(&wire, in); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(wire.String(), "\n"); n != 1 {
			t.Fatalf("%d lines", n)
		}
		out, err := mps.Read[mps.Request](&wire)
		if err != nil || out.Validate() != nil {
			t.Fatalf("%v, %v", err, out.Validate())
		}
		if diff := cmp.Diff(in, out, cmp.Comparer(mps.Spec.Equal)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestRequestsThatAreRefused(t *testing.T) {
	good := mps.Spec{Devices: []mps.Device{{UUID: "GPU-1"}}}
	threads := 101
	for word, r := range map[string]mps.Request{
		"version":                {Version: 2, Op: mps.OpList},
		"op":                     {Version: 1, Op: "restart"},
		"name":                   {Version: 1, Op: mps.OpStop, Name: "../x"},
		"spec":                   {Version: 1, Op: mps.OpEnsure, Name: "gpu"},
		"devices: 0":             {Version: 1, Op: mps.OpEnsure, Name: "gpu", Spec: &mps.Spec{}},
		"devices: 129":           {Version: 1, Op: mps.OpEnsure, Name: "gpu", Spec: &mps.Spec{Devices: make([]mps.Device, 129)}},
		"devices[0].uuid":        {Version: 1, Op: mps.OpEnsure, Name: "gpu", Spec: &mps.Spec{Devices: []mps.Device{{UUID: "GPU-1\nquit"}}}},
		"pinnedMemoryMiB":        {Version: 1, Op: mps.OpEnsure, Name: "gpu", Spec: &mps.Spec{Devices: []mps.Device{{UUID: "GPU-1", PinnedMemoryMiB: -1}}}},
		"activeThreadPercentage": {Version: 1, Op: mps.OpEnsure, Name: "gpu", Spec: &mps.Spec{Devices: good.Devices, ActiveThreadPercentage: &threads}},
	} {
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not name %s", err, word)
		}
	}
	for _, r := range []mps.Request{{Version: 1, Op: mps.OpList}, {Version: 1, Op: mps.OpStop, Name: "gpu-0000-1a-00-0"}, {Version: 1, Op: mps.OpEnsure, Name: "gpu", Spec: &good}} {
		if err := r.Validate(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestSpecsAreEqualByValue(t *testing.T) {
	p := func(n int) *int { return &n }
	base := mps.Spec{Devices: []mps.Device{{UUID: "GPU-1", PinnedMemoryMiB: 5}}, ActiveThreadPercentage: p(30)}
	if same := base; !base.Equal(same) || !base.Equal(mps.Spec{Devices: []mps.Device{{UUID: "GPU-1", PinnedMemoryMiB: 5}}, ActiveThreadPercentage: p(30)}) {
		t.Error("not equal to itself")
	}
	for _, other := range []mps.Spec{
		{Devices: base.Devices},
		{Devices: base.Devices, ActiveThreadPercentage: p(0)},
		{Devices: base.Devices, ActiveThreadPercentage: p(30), MultiUser: true},
		{Devices: []mps.Device{{UUID: "GPU-1"}}, ActiveThreadPercentage: p(30)},
	} {
		if base.Equal(other) || other.Equal(base) {
			t.Errorf("equal to %+v", other)
		}
	}
	if (mps.Spec{Devices: base.Devices}).Equal(mps.Spec{Devices: base.Devices, ActiveThreadPercentage: p(0)}) {
		t.Error("no limit is a limit of 0")
	}
}

func TestTheTimeOfARequestHasABound(t *testing.T) {
	for millis, want := range map[int64]time.Duration{0: time.Second, -5: time.Second, 20: 20 * time.Millisecond, 1 << 62: time.Second} {
		if got := (mps.Request{TimeoutMillis: millis}).Timeout(time.Second); got != want {
			t.Errorf("%d ms gives %s, want %s", millis, got, want)
		}
	}
}

// endless is a peer that never ends its line.
type endless struct{ read int }

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	e.read += len(b)
	return len(b), nil
}

func TestMessagesHaveABound(t *testing.T) {
	peer := &endless{}
	if _, err := mps.Read[mps.Request](peer); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("error %v", err)
	}
	if peer.read > 4<<20 {
		t.Errorf("%d bytes were taken in", peer.read)
	}
	if _, err := mps.Read[mps.Response](strings.NewReader(`{"version":1}`)); !errors.Is(err, io.EOF) {
		t.Errorf("a message that was cut off: %v", err)
	}
}

// Nothing that comes over the socket does harm, and what is valid keeps its meaning on the way.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"version":1,"op":"ensure","name":"gpu","spec":{"devices":[{"uuid":"GPU-1","pinnedMemoryMiB":5}],"activeThreadPercentage":20}}` + "\n"))
	f.Add([]byte(`{"version":1,"op":"stop","name":"../../etc","new":{}}` + "\n"))
	f.Add([]byte("{\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in, err := mps.Read[mps.Request](bytes.NewReader(data))
		if err != nil || in.Validate() != nil {
			return
		}
		if strings.ContainsAny(in.Name, "/.\n") {
			t.Fatalf("name %q", in.Name)
		}
		if in.Spec != nil && in.Op == mps.OpEnsure {
			for _, d := range in.Spec.Devices {
				if strings.ContainsAny(d.UUID, "\n ,=") {
					t.Fatalf("UUID %q", d.UUID)
				}
			}
		}
		var wire bytes.Buffer
		if err := mps.Write(&wire, in); err != nil {
			t.Fatal(err)
		}
		out, err := mps.Read[mps.Request](&wire)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, out); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestShmSizes(t *testing.T) {
	for size, valid := range map[string]bool{
		"50%": true, "1%": true, "100%": true, "8g": true, "1048576": true, "64M": true,
		"0": false, "0%": false, "101%": false, "-1": false, "8 g": false, "8g,uid=0": false, "": false, "1t": false,
	} {
		if mps.ValidShmSize(size) != valid {
			t.Errorf("%q: %t", size, !valid)
		}
	}
}
