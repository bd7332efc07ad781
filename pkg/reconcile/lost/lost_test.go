package lost_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/cdi"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/reconcile/lost"
)

const (
	driver = "gpu.nvidia.com"
	uid    = types.UID("4f7f8c0e-0000-4000-8000-000000000001")
	share  = types.UID("5f7f8c0e-0000-4000-8000-000000000002")
)

var at = pci.Address{Bus: 0x1a}

// known is a partition that the node has.
type known struct{ device.Device }

func (known) Name() string      { return "gpu-0000-1a-00-0-mig-1g-10gb-0" }
func (known) Kind() device.Kind { return device.KindMIG }
func (known) Identity() device.Identity {
	return device.Identity{PCI: at, GPUUUID: "GPU-1", Partition: "1g.10gb:0+1"}
}
func (known) Publish(device.Vocabulary) (d resourceapi.Device, o []device.Omission) { return d, o }

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	spec := driver + "-claim_" + string(uid) + ".json"
	put(t, dir, spec, `{"cdiVersion":"0.5.0","kind":"gpu.nvidia.com/claim","devices":[{"name":"a"},{"name":"b","containerEdits":{"env":["X=y"]}}]}`)
	put(t, dir, driver+"_metadata_"+string(uid)+"_gpu.json",
		`{"devices":[{"name":"m","containerEdits":{"mounts":[{"hostPath":"/var/p/dra-device-metadata/team_train/gpu/metadata.json"}]}}]}`)
	put(t, dir, driver+"-claim_known.json", "not read")
	put(t, dir, driver+"-claim_torn.json", "{")
	put(t, dir, driver+"-claim_.json", "not a claim")
	put(t, dir, "nic.example.com-claim_x.json", "{")
	put(t, dir, driver+"-driver.json", "{")
	specs, err := lost.Read(dir, driver, func(u types.UID) bool { return u == "known" })
	if err == nil || !strings.Contains(err.Error(), "torn") || strings.Contains(err.Error(), "nic") {
		t.Errorf("%v", err)
	}
	want := []lost.Spec{{Claim: uid, Namespace: "team", Name: "train", Devices: []string{"a", "b"}}}
	if diff := cmp.Diff(want, specs); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Without metadata the name is not known.
	for _, text := range []string{"{", `{"devices":[{"containerEdits":{"mounts":[{"hostPath":"/x"}]}}]}`} {
		put(t, dir, driver+"_metadata_"+string(uid)+"_gpu.json", text)
		specs, _ = lost.Read(dir, driver, func(u types.UID) bool { return u != uid })
		if len(specs) != 1 || specs[0].Name != "" || specs[0].Namespace != "" {
			t.Errorf("%+v", specs)
		}
	}
	if _, err := lost.Read(filepath.Join(dir, "none"), driver, nil); err == nil {
		t.Error("a directory that is not there was read")
	}
}

func TestRecord(t *testing.T) {
	shared := share
	spec := lost.Spec{Claim: uid, Namespace: "team", Name: "train", Devices: []string{
		cdi.DeviceName(uid, "all/small", known{}.Name(), nil),
		cdi.DeviceName(uid, "whole", "gpu-0000-1a-00-0", &shared),
		cdi.DeviceName(uid, "gone", "gpu-00010000-1b-00-0-mig-2g-20gb-4", nil),
	}}
	got, err := spec.Record("node", "boot", map[string]device.Device{known{}.Name(): known{}})
	if err != nil {
		t.Fatal(err)
	}
	want := &journal.Record{
		Namespace: "team", Name: "train", UID: uid, State: journal.StateStarted, BootID: "boot",
		Devices: []journal.Device{
			{Request: "all/small", Pool: "node", Name: known{}.Name(), Kind: "mig", PCI: at, GPUUUID: "GPU-1", Partition: "1g.10gb:0+1"},
			{Request: "whole", Pool: "node", Name: "gpu-0000-1a-00-0", ShareID: &shared, Kind: "gpu", PCI: at},
			{Request: "gone", Pool: "node", Name: "gpu-00010000-1b-00-0-mig-2g-20gb-4", Kind: "mig", PCI: pci.Address{Domain: 0x10000, Bus: 0x1b}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// Its programs are older than the record: it must not say a time, on disk neither.
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Save(got); err != nil {
		t.Fatal(err)
	}
	if again, err := store.Load(uid); err != nil || !again.Created.IsZero() {
		t.Errorf("read again: created %v, %v", again.Created, err)
	}
}

// What is not a claim's of ours makes no owner.
func TestRecordRefuses(t *testing.T) {
	for name, devices := range map[string][]string{
		"nothing":        nil,
		"no parts":       {"gpu"},
		"too many parts": {string(uid) + "_r_gpu-0000-1a-00-0_s_t"},
		"another claim":  {"other_r_gpu-0000-1a-00-0"},
		"no address":     {string(uid) + "_r_tpu-1"},
		"half a name":    {string(uid) + "_r_gpu-0000-1a"},
		"a bad address":  {string(uid) + "_r_gpu-0000-zz-00-0"},
		"one of two":     {string(uid) + "_r_gpu-0000-1a-00-0", "x"},
	} {
		if r, err := (lost.Spec{Claim: uid, Devices: devices}).Record("node", "boot", nil); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Claims with a record, also a bad one, are left alone, and one that cannot be entered keeps no other
// from it.
func TestEnter(t *testing.T) {
	dir := lost.Dir{Path: t.TempDir(), Driver: driver, Pool: "node", BootID: "boot"}
	for _, claim := range []types.UID{"a", "bad", "fails", "good", "z"} {
		put(t, dir.Path, driver+"-claim_"+string(claim)+".json", `{"devices":[{"name":"`+cdi.DeviceName(claim, "r", "gpu-0000-1a-00-0", nil)+`"}]}`)
	}
	put(t, dir.Path, driver+"-claim_foreign.json", `{"devices":[{"name":"foreign"}]}`)
	var entered, rebuilt []types.UID
	dir.Rebuilt = func(_ context.Context, claim claims.Ref) { rebuilt = append(rebuilt, claim.UID) }
	adopt := func(_ context.Context, r *journal.Record) (bool, error) {
		if r.UID == "fails" {
			return false, errors.New("disk full")
		}
		entered = append(entered, r.UID)
		return r.UID != "z", nil
	}
	list := func() ([]*journal.Record, []journal.Bad, error) {
		return []*journal.Record{{UID: "good"}}, []journal.Bad{{UID: "bad"}}, nil
	}
	dir.Enter(t.Context(), list, adopt, nil)
	if diff := cmp.Diff([]types.UID{"a", "z"}, entered); diff != "" {
		t.Errorf("entered (-want +got):\n%s", diff)
	}
	// What another instance has entered meanwhile is its to tell.
	if diff := cmp.Diff([]types.UID{"a"}, rebuilt); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	entered = nil
	dir.Enter(t.Context(), func() ([]*journal.Record, []journal.Bad, error) { return nil, nil, errors.New("unreadable") }, adopt, nil)
	if len(entered) > 0 {
		t.Errorf("entered %q without knowing the records", entered)
	}
}

// Whatever lies in the directory, reading ends with a record or an error.
func FuzzSpec(f *testing.F) {
	f.Add(`{"devices":[{"name":"` + string(uid) + `_r_gpu-0000-1a-00-0"}]}`)
	f.Add(`{"devices":null}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		put(t, dir, driver+"-claim_"+string(uid)+".json", text)
		specs, err := lost.Read(dir, driver, func(types.UID) bool { return false })
		if (err == nil) != (len(specs) == 1) {
			t.Fatalf("%v, %v", specs, err)
		}
		for _, s := range specs {
			r, err := s.Record("node", "boot", nil)
			if (err == nil) != (r != nil && len(r.Devices) == len(s.Devices)) {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	})
}
