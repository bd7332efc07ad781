package process_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
)

// Claims of one, four and eight GPUs: the answer stays the same however often it is asked for,
// and the first CDI id of each device is its own.
func TestPrepareIsIdempotent(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	b.Start()
	for _, gpus := range [][]int{{6}, {0, 2, 4, 6}, all(8)} {
		claim := b.Allocated("again", gpus)
		first := prepare(t, b, claim, gpus...)
		for range 3 {
			if diff := cmp.Diff(first, prepare(t, b, claim, gpus...)); diff != "" {
				t.Errorf("another answer: %s", diff)
			}
		}
		seen := map[string]bool{}
		for _, d := range first {
			if id := d.CDIDeviceIDs[0]; seen[id] {
				t.Errorf("CDI id %s is first for two devices", id)
			} else {
				seen[id] = true
			}
		}
		for range 2 {
			unprepare(t, b, claim)
		}
		clean(t, b)
	}
}

// One claim of a batch cannot be prepared; the others are.
func TestOneBadClaimOfABatch(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start()
	good, bad := b.Allocated("good", []int{0}), b.Allocated("bad", []int{1}, func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Results[0].Device = "gpu-0000-ff-00-0"
	})
	result, err := b.Kubelet.Prepare(b.Context(), process.Driver, good, bad)
	must(t, err)
	must(t, b.CheckPrepared(good, result[good.UID].Devices, 0))
	says(t, result[bad.UID].Err, `device "gpu-0000-ff-00-0" is not in pool "node-1"`, b.Device(1))
	errs, err := b.Kubelet.Unprepare(b.Context(), process.Driver, good, bad, kubelet.Claim{Namespace: "x", Name: "never-seen", UID: "4f7f8c0e-0000-4000-8000-000000000000"})
	must(t, err)
	for uid, err := range errs {
		if err != nil {
			t.Errorf("unprepare of %s: %v", uid, err)
		}
	}
	clean(t, b)
}

// A GPU has one owner. A second claim waits inside its call for the first one's unprepare, and
// fails with its name when that does not come.
func TestOneOwner(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Flag("holder-wait", "300ms"))
	owner, next := b.Allocated("owner", []int{0, 1}), b.Allocated("next", []int{1})
	prepare(t, b, owner, 0, 1)
	refused(t, b, next, "device "+b.Device(1)+" is still prepared for claim default/owner", string(owner.UID))
	metric(t, b, p, `gpu_dra_call_failures_total{operation="prepare",reason="held"} 1`)
	event(t, b, "PrepareFailed", "default/owner")

	p.Terminate()
	p = b.Start(process.Flag("holder-wait", "40s"))
	answer := async(func() error {
		answer, err := b.Prepare(next)
		if err == nil {
			err = b.CheckPrepared(next, answer, 1)
		}
		return err
	})
	metric(t, b, p, `gpu_dra_calls_in_flight{operation="prepare"} 1`)
	unprepare(t, b, owner)
	must(t, <-answer)
	unprepare(t, b, next)
	clean(t, b)
}

// event waits until the API has an Event of that reason with the word in its note.
func event(t testing.TB, b *process.Bed, reason, word string) {
	t.Helper()
	b.Eventually("Event "+reason, func() error {
		list, err := b.Client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Note, word) {
				return nil
			}
		}
		return fmt.Errorf("%d Events", len(list.Items))
	})
}

// Admin access takes nothing from an owner and leaves nothing of it when it ends.
func TestAdminAccess(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start(process.Flag("holder-wait", "1ms"))
	admin := func(c *resourceapi.ResourceClaim) {
		for i := range c.Status.Allocation.Devices.Results {
			c.Status.Allocation.Devices.Results[i].AdminAccess = ptr.To(true)
		}
	}
	watcher, owner := b.Allocated("watcher", all(4), admin), b.Allocated("owner", []int{2})
	prepare(t, b, watcher, all(4)...)
	prepare(t, b, owner, 2)
	second := b.Allocated("second-watcher", []int{2}, admin)
	prepare(t, b, second, 2)
	unprepare(t, b, watcher)
	refused(t, b, b.Allocated("thief", []int{2}), "default/owner")
	unprepare(t, b, owner)
	if diff := cmp.Diff([]string{"cdi/" + process.Driver + "-claim_" + string(second.UID) + ".json"}, only(b.Leftovers(), "-claim_")); diff != "" {
		t.Error(diff)
	}
	unprepare(t, b, second)
	clean(t, b)
}

func only(all []string, word string) []string {
	var some []string
	for _, s := range all {
		if strings.Contains(s, word) {
			some = append(some, s)
		}
	}
	return some
}

// config is an opaque configuration in a claim's allocation.
func config(driver, parameters string) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{process.Request},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		})
	}
}

func TestConfigurations(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start()
	const head = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"`
	for name, row := range map[string]struct {
		driver, parameters string
		refusal            []string
	}{
		"empty":            {process.Driver, head + `}`, nil},
		"of another":       {"nic.example.com", `{"kind":"Nonsense"}`, nil},
		"sharing":          {process.Driver, head + `,"sharing":{"strategy":"MPS"}}`, []string{"sharing.strategy", "MPS", "switched off on this node"}},
		"unknown field":    {process.Driver, head + `,"sharring":{}}`, []string{"sharring"}},
		"unknown kind":     {process.Driver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"TpuConfig"}`, []string{"TpuConfig"}},
		"of another type":  {process.Driver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig"}`, []string{"MigDeviceConfig"}},
		"not an object":    {process.Driver, `[1]`, []string{"config"}},
		"unknown strategy": {process.Driver, head + `,"sharing":{"strategy":"Magic"}}`, []string{"Magic"}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := b.Allocated("configured", []int{1}, config(row.driver, row.parameters))
			if row.refusal == nil {
				prepare(t, b, claim, 1)
				unprepare(t, b, claim)
			} else {
				refused(t, b, claim, row.refusal...)
			}
			clean(t, b)
		})
	}
}

// What is not this driver's on this node is passed over, whatever it is named.
func TestForeignResults(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start()
	foreign := func(c *resourceapi.ResourceClaim) {
		results := &c.Status.Allocation.Devices.Results
		nic, elsewhere := b.Result("nic", 3), b.Result(process.Request, 3)
		nic.Driver = "nic.example.com"
		elsewhere.Pool = "node-2"
		hostile := nic
		hostile.Request, hostile.Pool, hostile.Device = "../../"+process.Request, "/etc", "../../../etc/passwd"
		*results = append([]resourceapi.DeviceRequestAllocationResult{nic, hostile, elsewhere}, *results...)
	}
	mixed := b.Allocated("mixed", []int{0}, foreign)
	prepare(t, b, mixed, 0)
	for _, file := range []string{b.RecordPath(mixed), b.SpecPath(mixed)} {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, word := range []string{"nic.example", "node-2", "passwd", "..", b.Device(3)} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s says %q: %s", file, word, text)
			}
		}
	}
	owner := b.Allocated("owner", []int{3})
	prepare(t, b, owner, 3)
	none := b.Allocated("none", nil, foreign)
	if answer, err := b.Prepare(none); err != nil || len(answer) != 0 {
		t.Errorf("a claim with nothing of ours: %v, %v", answer, err)
	}
	if b.Record(none.UID) {
		t.Error("a claim with nothing of ours has a record")
	}
	unprepare(t, b, none, owner, mixed)
	clean(t, b)
}

// Claims that make no sense are refused and harm nobody.
func TestHostileClaims(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start()
	for name, change := range map[string]func(*resourceapi.ResourceClaim){
		"not allocated": func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil },
		"path as device": func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Device = "../../../etc/passwd"
		},
		"MIG name of a GPU": func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Device = b.Device(0) + "-mig-1g-5gb-0"
		},
		"no device name": func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Device = "" },
		"path as UID":    func(c *resourceapi.ResourceClaim) { c.UID = "../../../tmp/evil" },
		"no UID":         func(c *resourceapi.ResourceClaim) { c.UID = "" },
		"long UID":       func(c *resourceapi.ResourceClaim) { c.UID = types.UID(strings.Repeat("u", 400)) },
		"one GPU twice": func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, b.Result("second", 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := b.Allocated("hostile", []int{0}, change)
			if _, err := b.Prepare(claim); err == nil {
				t.Error("was prepared")
			}
			_ = b.Unprepare(claim) // a UID that cannot be one is refused here too
			clean(t, b)
		})
	}
	if !p.Running() {
		t.Fatal("the plugin ended")
	}
	good := b.Allocated("good", []int{0})
	prepare(t, b, good, 0)
	unprepare(t, b, good)
}

// Results of firstAvailable name request and subrequest; containers find the metadata under the
// request, and all of it goes with the claim.
func TestSubrequestsAndMetadata(t *testing.T) {
	t.Parallel()
	b := process.New(t, "hgx-h100-8")
	b.Start()
	claim := b.Allocated("first", []int{2, 5}, func(c *resourceapi.ResourceClaim) {
		for i := range c.Status.Allocation.Devices.Results {
			c.Status.Allocation.Devices.Results[i].Request = "gpus/large"
		}
	}, config(process.Driver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`))
	for _, d := range prepare(t, b, claim, 2, 5) {
		// The kubelet knows requests only.
		if diff := cmp.Diff([]string{"gpus"}, d.Requests); diff != "" {
			t.Error(diff)
		}
	}
	data, err := os.ReadFile(filepath.Join(b.DataDir(), "dra-device-metadata", "default_first", "gpus", "metadata.json"))
	must(t, err)
	var first struct {
		Requests []struct {
			Devices []struct {
				Name       string
				Attributes map[string]map[string]any
			}
		}
	}
	must(t, json.NewDecoder(strings.NewReader(string(data))).Decode(&first))
	if len(first.Requests) != 1 || len(first.Requests[0].Devices) != 2 {
		t.Fatalf("metadata: %s", data)
	}
	for i, gpu := range []int{2, 5} {
		d := first.Requests[0].Devices[i]
		board := b.Node.Spec().GPUs[gpu]
		if d.Name != b.Device(gpu) || d.Attributes["uuid"]["string"] != board.UUID || d.Attributes["minor"]["int"] != float64(board.Minor) {
			t.Errorf("metadata of %s: %+v", b.Device(gpu), d)
		}
	}
	unprepare(t, b, claim)
	clean(t, b)
}

// A CDI spec that vanished or was changed is right again after the next prepare.
func TestSpecsAreRepaired(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	b.Start()
	claim := b.Allocated("broken", []int{1, 3})
	prepare(t, b, claim, 1, 3)
	base := filepath.Join(b.CDIDir(), process.Driver+"-driver.json")
	for _, path := range []string{b.SpecPath(claim), base} {
		good, err := os.ReadFile(path)
		must(t, err)
		for name, damage := range map[string]func() error{
			"removed":   func() error { return os.Remove(path) },
			"emptied":   func() error { return os.WriteFile(path, nil, 0o644) },
			"overwrite": func() error { return os.WriteFile(path, []byte(`{"cdiVersion":"0.3.0","kind":"x/y"}`), 0o644) },
		} {
			must(t, damage())
			prepare(t, b, claim, 1, 3)
			now, err := os.ReadFile(path)
			must(t, err)
			if diff := cmp.Diff(string(good), string(now)); diff != "" {
				t.Errorf("%s %s: %s", filepath.Base(path), name, diff)
			}
		}
	}
	unprepare(t, b, claim)
	clean(t, b)
}

// A record that cannot be read is set aside at the start and told, and its claim keeps its GPU.
func TestCorruptRecord(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start()
	for name, damage := range map[string]func(record []byte) []byte{
		"torn":    func(record []byte) []byte { return record[:len(record)/2] },
		"empty":   func([]byte) []byte { return nil },
		"foreign": func([]byte) []byte { return []byte(`{"kind":"Pod","metadata":{"name":"x"}}`) },
		"altered": func(record []byte) []byte { return bytes.Replace(record, []byte(b.Device(1)), []byte(b.Device(2)), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			claim, other := b.Allocated("kept", []int{1}), b.Allocated("other", []int{1})
			prepare(t, b, claim, 1)
			p.Kill()
			record, err := os.ReadFile(b.RecordPath(claim))
			must(t, err)
			damaged := damage(record)
			must(t, os.WriteFile(b.RecordPath(claim), damaged, 0o600))
			p = b.Start(process.Flag("holder-wait", "1ms"))
			event(t, b, "RecordQuarantined", string(claim.UID))
			metric(t, b, p, "gpu_dra_quarantined_records_total 1")
			refused(t, b, other, "default/kept")
			prepare(t, b, claim, 1)
			unprepare(t, b, claim)
			prepare(t, b, other, 1)
			unprepare(t, b, other)
			aside, err := filepath.Glob(filepath.Join(b.DataDir(), "claims", "quarantine", string(claim.UID)+"*"))
			if err != nil || len(aside) != 1 {
				t.Fatalf("set aside: %v, %v", aside, err)
			}
			if kept, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(kept, damaged) {
				t.Errorf("set aside was %q: %v", kept, err)
			}
			clean(t, b)
		})
	}
}

// A prepare that waits for its device is ended by the unprepare of its claim, which does not
// wait for it, and leaves nothing.
func TestUnprepareEndsAPrepare(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Flag("holder-wait", "40s"))
	owner, late := b.Allocated("owner", []int{0}), b.Allocated("late", []int{0})
	prepare(t, b, owner, 0)
	waiting := async(func() error {
		_, err := b.Prepare(late)
		return err
	})
	metric(t, b, p, `gpu_dra_calls_in_flight{operation="prepare"} 1`)
	unprepare(t, b, late)
	// Had it waited to the end, it would name the holder.
	says(t, <-waiting, "the claim is being unprepared")
	unprepare(t, b, owner)
	clean(t, b)
}
