package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	library "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

const claimFile = driver + "-claim_" + string(someUID) + ".json"

func gpu(request string, minor int) Device {
	return Device{
		Name:  DeviceName(someUID, request, fmt.Sprintf("gpu-%d", minor), nil),
		Edits: Edits{Nodes: []NodeWant{GPUNode(minor)}},
	}
}

func ensureClaim(t testing.TB, n *node, devices ...Device) bool {
	t.Helper()
	written, err := n.dir.EnsureClaim(t.Context(), someUID, devices)
	if err != nil {
		t.Fatal(err)
	}
	return written
}

func TestClaimSpecThroughTheLibrary(t *testing.T) {
	n := newNode(t)
	mig := Device{
		Name: DeviceName(someUID, "part/small", "gpu-0-mig", nil),
		Edits: Edits{
			Nodes: []NodeWant{GPUNode(0), CapNode(21)}, Env: []string{"A=b"},
			Mounts: []*specs.Mount{{HostPath: "/pipe", ContainerPath: "/tmp/pipe", Options: []string{"bind"}}},
		},
	}
	devices := []Device{gpu("first", 2), mig}
	if !ensureClaim(t, n, devices...) {
		t.Error("the first call wrote nothing")
	}
	spec := n.inject(t, n.dir.ClaimID(devices[0].Name), n.dir.ClaimID(mig.Name))
	type nodeOf struct {
		Path         string
		Type         string
		Major, Minor int64
		Mode         os.FileMode
	}
	var got []nodeOf
	for _, d := range spec.Linux.Devices {
		got = append(got, nodeOf{d.Path, d.Type, d.Major, d.Minor, *d.FileMode})
	}
	want := []nodeOf{
		{"/dev/nvidia2", "c", 195, 2, 0o666}, {"/dev/nvidia0", "c", 195, 0, 0o666}, {"/dev/nvidia-caps/nvidia-cap21", "c", 236, 21, 0o666},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, rule := range spec.Linux.Resources.Devices {
		if !rule.Allow || rule.Access != "rwm" || rule.Type != "c" {
			t.Errorf("cgroup rule %+v", rule)
		}
	}
	if diff := cmp.Diff([]string{"A=b"}, spec.Process.Env); diff != "" {
		t.Error(diff)
	}
	if len(spec.Mounts) != 1 || spec.Mounts[0].Source != "/pipe" {
		t.Errorf("mounts %v", spec.Mounts)
	}
}

func TestClaimSpecFile(t *testing.T) {
	n := newNode(t)
	ensureClaim(t, n, gpu("r", 0))
	info, err := os.Stat(filepath.Join(n.specs, claimFile))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v: runtimes need not be root", info.Mode(), err)
	}
	var spec specs.Spec
	if err := json.Unmarshal([]byte(n.read(t, claimFile)), &spec); err != nil {
		t.Fatal(err)
	}
	node := spec.Devices[0].ContainerEdits.DeviceNodes[0]
	if spec.Version != "0.5.0" || spec.Kind != driver+"/claim" || node.HostPath != "/run/nvidia/dev/nvidia0" {
		t.Errorf("spec %+v, node %+v", spec, node)
	}
	entries, err := os.ReadDir(n.specs)
	if err != nil || len(entries) != 1 {
		t.Errorf("litter: %v, %v", entries, err)
	}
}

// Where both views are the host's own, the spec has no hostPath.
func TestHostPathLeftOutWhereEqual(t *testing.T) {
	n := newNode(t)
	n.dir.host = n.host(Root{Host: "/dev", Container: "/dev"})
	ensureClaim(t, n, gpu("r", 0))
	if text := n.read(t, claimFile); strings.Contains(text, "hostPath") {
		t.Error(text)
	}
}

func TestEnsureClaimRepairs(t *testing.T) {
	tests := []struct {
		name    string
		change  func(t *testing.T, n *node, path string)
		devices []Device
		written bool
	}{
		{"unchanged", func(*testing.T, *node, string) {}, nil, false},
		{"vanished", func(t *testing.T, _ *node, path string) { must(t, os.Remove(path)) }, nil, true},
		{"torn", func(t *testing.T, _ *node, path string) { must(t, os.Truncate(path, 20)) }, nil, true},
		{"emptied", func(t *testing.T, _ *node, path string) { must(t, os.Truncate(path, 0)) }, nil, true},
		{"other major after a reload of the module", func(_ *testing.T, n *node, _ string) {
			n.majors = map[string]uint32{"nvidia": 234}
			n.stats["nvidia1"] = char(234, 1)
		}, nil, true},
		{"other minor after a reboot", func(*testing.T, *node, string) {}, []Device{gpu("r", 3)}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			first := []Device{gpu("r", 1)}
			ensureClaim(t, n, first...)
			tt.change(t, n, filepath.Join(n.specs, claimFile))
			if tt.devices == nil {
				tt.devices = first
			}
			if written := ensureClaim(t, n, tt.devices...); written != tt.written {
				t.Errorf("written = %t", written)
			}
			n.inject(t, n.dir.ClaimID(tt.devices[0].Name))
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBadNodesAreRefused(t *testing.T) {
	of := func(s NodeStat) func(*node) { return func(n *node) { n.stats["nvidia1"] = s } }
	tests := []struct {
		name         string
		change       func(n *node)
		want, remedy string
	}{
		{"missing", func(n *node) { delete(n.stats, "nvidia1") }, "/run/nvidia/dev/nvidia1 is missing", remedyMake},
		{"regular file", of(NodeStat{}), "not a character device but a regular file", remedyRemake},
		{"directory", of(NodeStat{Mode: os.ModeDir | 0o755}), "not a character device but a directory", remedyRemake},
		{"symbolic link", of(NodeStat{Mode: os.ModeSymlink | 0o777}), "not a character device but a symbolic link", remedyRemake},
		{"block device", of(NodeStat{Mode: os.ModeDevice, Major: 195, Minor: 1}), "not a character device but a block device", remedyRemake},
		{"named pipe", of(NodeStat{Mode: os.ModeNamedPipe}), "not a character device but a named pipe", remedyRemake},
		{"socket", of(NodeStat{Mode: os.ModeSocket}), "not a character device but a socket", remedyRemake},
		{"something else", of(NodeStat{Mode: os.ModeIrregular}), "not a character device but a file of type ?", remedyRemake},
		{"other minor", of(char(195, 2)), "minor number 2 instead of 1", remedyRemake},
		{"other major", of(char(1, 1)), "major number 1, but the kernel driver nvidia has 195", remedyRemake},
		{"module not loaded", func(n *node) { n.majors = map[string]uint32{"mem": 1} }, "kernel module is not loaded", remedyLoad},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			tt.change(n)
			devices := []Device{gpu("a", 0), gpu("b", 1)}
			_, err := n.dir.EnsureClaim(t.Context(), someUID, devices)
			// Faults that are not about the second node may show at the first.
			nodeErr := new(NodeError)
			if !errors.As(err, &nodeErr) || !strings.Contains(err.Error(), tt.want) || !strings.HasSuffix(err.Error(), "; "+tt.remedy) {
				t.Errorf("%v, want %q and %q", err, tt.want, tt.remedy)
			}
			if checked := n.dir.CheckClaim(t.Context(), devices); checked == nil || checked.Error() != err.Error() {
				t.Errorf("CheckClaim: %v", checked)
			}
			if text := n.read(t, claimFile); text != "" {
				t.Errorf("a spec was written: %s", text)
			}
		})
	}
}

func TestNodeThatCannotBeLookedAt(t *testing.T) {
	n := newNode(t)
	n.dir.host.Stat = func(string) (NodeStat, error) { return NodeStat{}, os.ErrPermission }
	err := n.dir.CheckClaim(t.Context(), []Device{gpu("a", 0)})
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "cannot be looked at; "+remedyAccess) {
		t.Error(err)
	}
	n.majors = nil
	if err := n.dir.CheckClaim(t.Context(), []Device{gpu("a", 0)}); !errors.Is(err, errNoProc) {
		t.Error(err)
	}
}

// The one node that every Linux has, looked up for real.
func TestRealNode(t *testing.T) {
	minor := 3
	host := &Host{Dev: Root{Host: "/dev", Container: "/dev"}, Stat: Lstat}
	nodes, err := host.resolve([]NodeWant{{Name: "null", Drivers: []string{"mem"}, Minor: &minor}}, map[string]uint32{"mem": 1})
	must(t, err)
	mode := os.FileMode(0o666)
	want := []*specs.DeviceNode{{Path: "/dev/null", Type: "c", Major: 1, Minor: 3, FileMode: &mode, Permissions: "rwm"}}
	if diff := cmp.Diff(want, nodes); diff != "" {
		t.Error(diff)
	}
	if _, err := Lstat(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Error(err)
	}
	if st, err := Lstat("/proc/self"); err != nil || st.Mode&os.ModeSymlink == 0 {
		t.Errorf("a symbolic link was followed: %v, %v", st, err)
	}
}

func TestSpecsThatNoRuntimeWouldRead(t *testing.T) {
	n := newNode(t)
	tests := map[string][]Device{
		"has no device":     nil,
		"used twice":        {gpu("a", 0), gpu("a", 0)},
		"would add nothing": {{Name: "a"}},
		"CDI device name":   {{Name: "a b", Edits: Edits{Env: []string{"A=b"}}}},
	}
	for want, devices := range tests {
		if _, err := n.dir.EnsureClaim(t.Context(), someUID, devices); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, uid := range []types.UID{"", "../x", "a/b", "-"} {
		_, err := n.dir.EnsureClaim(t.Context(), uid, []Device{gpu("a", 0)})
		for _, err := range []error{err, n.dir.RemoveClaim(uid)} {
			if err == nil || !strings.Contains(err.Error(), "claim UID") {
				t.Errorf("%q: %v", uid, err)
			}
		}
	}
	if _, err := Open(n.specs, "-bad-", nil); err == nil {
		t.Error("a driver name that is no vendor is taken")
	}
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	n := newNode(t)
	foreign := []string{
		"nvidia.com-gpu.yaml", driver + "-claim_.json", driver + "-claim_x.yaml", "other.com-claim_abc.json",
		"." + driver + ".tmp", ".other.com-claim_x.json.1",
	}
	past := time.Now().Add(-time.Hour)
	for _, name := range foreign {
		path := filepath.Join(n.specs, name)
		must(t, os.WriteFile(path, []byte("x"), 0o600))
		must(t, os.Chtimes(path, past, past))
	}
	must(t, os.Mkdir(filepath.Join(n.specs, driver+"-claim_dir.json"), 0o700))
	litter := filepath.Join(n.specs, "."+claimFile+".123")
	must(t, os.WriteFile(litter, []byte("half"), 0o600))
	must(t, os.Chtimes(litter, past, past))
	ensureClaim(t, n, gpu("a", 0))
	_, err := n.dir.EnsureClaim(t.Context(), "another", []Device{gpu("a", 0)})
	must(t, err)

	reopened, err := Open(n.specs, driver, n.dir.host)
	must(t, err)
	uids, err := reopened.Claims()
	if diff := cmp.Diff([]types.UID{someUID, "another"}, uids); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for range 2 {
		must(t, reopened.RemoveClaim(someUID))
		must(t, reopened.RemoveClaim("another"))
	}
	if _, err := os.Stat(litter); !os.IsNotExist(err) {
		t.Errorf("the temporary file of a killed process is still there: %v", err)
	}
	for _, name := range foreign {
		if n.read(t, name) != "x" {
			t.Errorf("%s was touched", name)
		}
	}
}

func TestDirectoryErrors(t *testing.T) {
	n := newNode(t)
	file := filepath.Join(n.specs, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := Open(file, driver, n.dir.host); err == nil {
		t.Error("Open of a file succeeds")
	}
	// A directory in the place of the spec: the write fails and leaves nothing.
	must(t, os.MkdirAll(filepath.Join(n.specs, claimFile, "x"), 0o700))
	if _, err := n.dir.EnsureClaim(t.Context(), someUID, []Device{gpu("a", 0)}); err == nil || !strings.Contains(err.Error(), claimFile) {
		t.Error(err)
	}
	if err := n.dir.RemoveClaim(someUID); err == nil {
		t.Error("RemoveClaim of a full directory succeeds")
	}
	entries, err := os.ReadDir(n.specs)
	if err != nil || len(entries) != 2 {
		t.Errorf("litter: %v %v", entries, err)
	}
	must(t, os.RemoveAll(n.specs))
	if _, err := n.dir.Claims(); err == nil {
		t.Error("Claims of no directory succeeds")
	}
	if _, err := n.dir.EnsureClaim(t.Context(), someUID, []Device{gpu("a", 0)}); err == nil {
		t.Error("EnsureClaim without the directory succeeds")
	}
}

// Different (claim, request, device, share) give different names, all of which the library takes.
func TestDeviceNamesAreUnique(t *testing.T) {
	label := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?`)
	type parts struct {
		Claim, Request, Device string
		Share                  string
	}
	gen := rapid.Custom(func(t *rapid.T) parts {
		p := parts{Claim: label.Draw(t, "claim"), Request: label.Draw(t, "request"), Device: label.Draw(t, "device")}
		if rapid.Bool().Draw(t, "sub") {
			p.Request += "/" + label.Draw(t, "subrequest")
		}
		if rapid.Bool().Draw(t, "shared") {
			p.Share = label.Draw(t, "share")
		}
		return p
	})
	name := func(p parts) string {
		var share *types.UID
		if p.Share != "" {
			uid := types.UID(p.Share)
			share = &uid
		}
		return DeviceName(types.UID(p.Claim), p.Request, p.Device, share)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		if (name(a) == name(b)) != (a == b) {
			t.Fatalf("%v and %v are both %s", a, b, name(a))
		}
		spec := &specs.Spec{Kind: driver + "/claim", Devices: []specs.Device{{Name: name(a), ContainerEdits: specs.ContainerEdits{Env: []string{"A=b"}}}}}
		data, err := render(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := library.ParseSpec(data); err != nil {
			t.Fatal(err)
		}
	})
}

// A claim's spec costs the same with any number of others in the directory.
func BenchmarkEnsureClaim(b *testing.B) {
	for _, present := range []int{0, 256, 1000} {
		b.Run(fmt.Sprintf("present=%d", present), func(b *testing.B) {
			n := newNode(b)
			for i := range present {
				_, err := n.dir.EnsureClaim(b.Context(), types.UID(fmt.Sprintf("c%d", i)), []Device{gpu("r", 0)})
				must(b, err)
			}
			for b.Loop() {
				ensureClaim(b, n, gpu("r", 0))
				must(b, n.dir.RemoveClaim(someUID))
			}
		})
	}
}
