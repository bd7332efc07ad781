package mig_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/process/tracer"
)

const layouts = `
version: v1
mig-configs:
  all-1g:
  - devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 7}
  mixed:
  - devices: [0, 1]
    mig-enabled: true
    mig-devices: {"3g.40gb": 1, "1g.10gb": 2}
  - devices: [2]
    mig-enabled: false
  one:
  - devices: [0]
    mig-enabled: true
    mig-devices: {"3g.40gb": 1, "1g.10gb": 1}
  other:
  - devices: [0]
    mig-enabled: true
    mig-devices: {"2g.20gb": 1}
  too-many:
  - devices: [0]
    mig-enabled: true
    mig-devices: {"1g.10gb": 8}
`

const (
	configLabel = "nvidia.com/mig.config"
	stateLabel  = "nvidia.com/mig.config.state"
)

// declare writes the file of layouts and gives the settings that use it.
func (b bed) declare(config string) []process.Setting {
	b.T.Helper()
	path := filepath.Join(b.T.TempDir(), "layouts.yaml")
	must(b.T, os.WriteFile(path, []byte(layouts), 0o600))
	return []process.Setting{process.Flag("mig-layout-file", path), process.Flag("mig-layout", config)}
}

// label sets labels of the node; null takes one away.
func (b bed) label(pairs string) {
	b.T.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%s}}}`, pairs)
	_, err := b.Client.CoreV1().Nodes().Patch(b.T.Context(), process.NodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(b.T, err)
}

// choose sets the label that chooses a layout; "" takes it away.
func (b bed) choose(config string) {
	b.T.Helper()
	if config == "" {
		b.label(fmt.Sprintf("%q: null", configLabel))
		return
	}
	b.label(fmt.Sprintf("%q: %q", configLabel, config))
}

// state waits for the node's state label.
func (b bed) state(want string) {
	b.T.Helper()
	b.Eventually("state "+want, func() error {
		node, err := b.Client.CoreV1().Nodes().Get(b.T.Context(), process.NodeName, metav1.GetOptions{})
		if err == nil && node.Labels[stateLabel] != want {
			err = fmt.Errorf("labels %v, annotations %v; GPU 0 has %v", node.Labels, node.Annotations, b.partitions(0))
		}
		return err
	})
}

// laidOut waits until a GPU has these partitions and offers these devices.
func (b bed) laidOut(gpu int, partitions, devices []string) {
	b.T.Helper()
	b.Eventually(fmt.Sprintf("layout of GPU %d", gpu), func() error {
		if diff := cmp.Diff(partitions, b.partitions(gpu)); diff != "" {
			return fmt.Errorf("partitions (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(devices, b.names(gpu)); diff != "" {
			return fmt.Errorf("devices (-want +got):\n%s", diff)
		}
		return nil
	})
}

// told waits for an Event of that reason that says all of the texts.
func (b bed) told(reason string, texts ...string) {
	b.T.Helper()
	b.Eventually("Event "+reason, func() error {
		list, err := b.Client.EventsV1().Events(metav1.NamespaceAll).List(b.T.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range list.Items {
			if e.Reason != reason {
				continue
			}
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Note, text) }) {
				return nil
			}
			notes = append(notes, e.Note)
		}
		return fmt.Errorf("Events %q", notes)
	})
}

// metric waits until the plugin has a line.
func (b bed) metric(p *process.Plugin, line string) {
	b.T.Helper()
	b.Eventually(line, func() error {
		_, text, err := p.Get("/metrics")
		if err == nil && !strings.Contains(text, "\n"+line+"\n") {
			err = fmt.Errorf("no line %q", line)
		}
		return err
	})
}

// mine is what the layout "mixed" makes of a node.
const mine = `mig-configs:
  mine:
  - devices:
    - 0
    - 1
    mig-devices:
      1g.10gb: 2
      3g.40gb: 1
    mig-enabled: true
  - devices:
    - 2
    - 3
    - 4
    - 5
    - 6
    - 7
    mig-enabled: false
version: v1
`

// asserts runs the plugin's command that compares the node with a layout.
func (b bed) asserts(config string, holds bool, says ...string) {
	b.T.Helper()
	path := filepath.Join(b.T.TempDir(), "layouts.yaml")
	must(b.T, os.WriteFile(path, []byte(layouts), 0o600))
	out, err := b.MIGLayout("assert", "--mig-layout-file="+path, "--mig-layout="+config)
	if holds != (err == nil) {
		b.T.Errorf("assert of %s: %v: %s", config, err, out)
	}
	for _, word := range says {
		if !strings.Contains(out, word) {
			b.T.Errorf("assert of %s does not say %q: %s", config, word, out)
		}
	}
}

func sevens() (partitions, devices []string) {
	for i := range 7 {
		partitions, devices = append(partitions, fmt.Sprintf("1g.10gb:%d", i)), append(devices, fmt.Sprintf("1g-10gb-%d", i))
	}
	return partitions, devices
}

// A node is laid out by the setting, anew by the label, with a GPU in use as soon as it is idle,
// and is as it was when nothing is declared any more.
func TestDeclaredLayouts(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	p := b.start(b.declare("all-1g")...)
	partitions, devices := sevens()
	for i := range b.Node.GPUCount() {
		b.laidOut(i, partitions, devices)
	}
	b.state("success")
	b.metric(p, `gpu_dra_mig_layout_gpus{state="applied"} 8`)
	claim, given := b.wants("one", "1g.10gb", 2)
	if answer := b.prepare(claim); len(answer) != 2 {
		t.Errorf("prepared %v", answer)
	}
	if nodes := b.nodes(claim)[given[0]]; len(nodes) != 3 {
		t.Errorf("nodes %v", nodes)
	}

	b.choose("mixed")
	mixed := []string{"1g.10gb:2", "1g.10gb:3", "3g.40gb:4"}
	b.laidOut(1, mixed, []string{"1g-10gb-2", "1g-10gb-3", "3g-40gb-4"})
	b.laidOut(2, nil, []string{""})
	// What has no layout any more is offered on demand.
	b.Eventually("GPU 3 is whole", func() error {
		if b.mode(3) || len(b.partitions(3)) > 0 || len(b.names(3)) != 26 {
			return fmt.Errorf("mode %t, devices %v", b.mode(3), b.names(3))
		}
		return nil
	})
	b.asserts("mixed", false, b.Node.Spec().GPUs[0].PCI.String()+": want 2 x 1g.10gb, 1 x 3g.40gb, have 7 x 1g.10gb")
	// The one in use offers nothing, and keeps all that it has.
	b.laidOut(0, partitions, nil)
	b.state("pending")
	b.told("MIGLayoutPending", `layout "mixed"`, "in use by claim default/one")
	b.told("MIGPartitionsWithheld", `layout "mixed"`)
	b.metric(p, `gpu_dra_mig_layout_gpus{state="pending"} 1`)
	b.unprepare(claim)
	b.laidOut(0, mixed, []string{"1g-10gb-2", "1g-10gb-3", "3g-40gb-4"})
	b.state("success")
	b.asserts("mixed", true, "3 GPUs are as")
	b.asserts("all-1g", false, "8 GPUs are not as")
	if out, err := b.MIGLayout("export", "--name=mine"); err != nil || !strings.Contains(out, mine) {
		t.Errorf("export: %v\n%s", err, cmp.Diff(mine, out))
	}

	// What cannot be had changes nothing.
	b.choose("too-many")
	b.state("failed")
	b.told("MIGLayoutFailed", `layout "too-many"`, "7 x 1g.10gb fit")
	b.laidOut(0, mixed, []string{"1g-10gb-2", "1g-10gb-3", "3g-40gb-4"})
	b.choose("nonsense")
	b.told("MIGLayoutRefused", `no MIG layout "nonsense"`, "all-1g, mixed")
	b.laidOut(0, mixed, []string{"1g-10gb-2", "1g-10gb-3", "3g-40gb-4"})

	// Nothing is declared any more, after a restart.
	p.Terminate()
	b.choose("")
	b.start(b.declare("")...)
	b.Eventually("every GPU is whole", func() error {
		for i := range b.Node.GPUCount() {
			if b.mode(i) || len(b.partitions(i)) > 0 || len(b.names(i)) != 26 {
				return fmt.Errorf("GPU %d: mode %t, partitions %v, devices %v", i, b.mode(i), b.partitions(i), b.names(i))
			}
		}
		return nil
	})
	b.state("")
	b.untouched()
}

// What others made is part of the layout where it fits, in the way where not, and never removed.
func TestLayoutBesideForeignInstances(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	for gpu, profile := range []string{"1g.10gb", "2g.20gb"} {
		must(t, b.Node.SetMIGMode(gpu, true))
		_, err := b.Node.CreateMIG(gpu, profile, 0)
		must(t, err)
	}
	b.start(b.declare("mixed")...)
	b.laidOut(0, []string{"1g.10gb:0", "1g.10gb:1", "3g.40gb:4"}, []string{"1g-10gb-0", "1g-10gb-1", "3g-40gb-4"})
	b.laidOut(1, []string{"2g.20gb:0"}, []string{"2g-20gb-0"})
	b.state("failed")
	b.told("MIGLayoutFailed", b.Node.Spec().GPUs[1].PCI.String(), "what another tool made", "remove it")
	b.choose("one")
	// The second GPU is free of layouts, the first keeps what fits.
	b.laidOut(0, []string{"1g.10gb:0", "3g.40gb:4"}, []string{"1g-10gb-0", "3g-40gb-4"})
	b.state("success")
}

// A tool that acts on the same labels is noticed, and nothing is done beside it.
func TestLayoutBesideAnotherTool(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.label(fmt.Sprintf("%q: %q", stateLabel, "success"))
	p := b.start(b.declare("one")...)
	b.told("MIGLayoutRefused", "another tool", stateLabel+"=success", "migManager.enabled=false")
	b.laidOut(0, nil, nil)
	if b.mode(0) {
		t.Error("the mode was switched")
	}
	b.label(fmt.Sprintf("%q: null", stateLabel))
	b.state("success")
	b.laidOut(0, []string{"1g.10gb:3", "3g.40gb:4"}, []string{"1g-10gb-3", "3g-40gb-4"})
	// Our own state is known again after a restart.
	p.Kill()
	p = b.start(b.declare("one")...)
	b.choose("other")
	b.laidOut(0, []string{"2g.20gb:4"}, []string{"2g-20gb-4"})
	b.label(`"nvidia.com/gpu.deploy.mig-manager": "true"`)
	b.choose("one")
	b.told("MIGLayoutRefused", "gpu.deploy.mig-manager=true")
	b.laidOut(0, []string{"2g.20gb:4"}, []string{"2g-20gb-4"})
	if !p.Running() {
		t.Error("the plugin ended")
	}
}

// Partitions are offered as they are, and none is made; those of others may be left out.
func TestStaticPartitions(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	must(t, b.Node.SetMIGMode(1, true))
	_, err := b.Node.CreateMIG(1, "3g.40gb", 4)
	must(t, err)
	p := b.start(process.Flag("mig-devices", "static"))
	b.laidOut(0, nil, []string{""})
	b.laidOut(1, []string{"3g.40gb:4"}, []string{"3g-40gb-4"})
	claim, _ := b.wants("one", "3g.40gb", 1)
	b.prepare(claim)
	b.unprepare(claim)
	p.Terminate()
	b.start(process.Flag("mig-foreign-devices", "false"))
	b.Eventually("the foreign one is not offered, and what it leaves is", func() error {
		if names := b.names(1); slices.Contains(names, "3g-40gb-4") || len(names) < 2 || slices.Contains(names, "") {
			return fmt.Errorf("devices %v", names)
		}
		return nil
	})
	if diff := cmp.Diff([]string{"3g.40gb:4"}, b.partitions(1)); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
}

// An instance that stays in use after its claim is told of, and its place is not given out, though
// the API server has no claim any more that has it.
func TestStuckInstanceIsTold(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	p := b.start()
	claim, _ := b.wants("one", "1g.10gb", 1)
	b.prepare(claim)
	must(t, b.Client.ResourceV1().ResourceClaims(claim.Namespace).Delete(t.Context(), claim.Name, metav1.DeleteOptions{}))
	found, err := b.Node.MIGInstances(0)
	must(t, err)
	must(t, b.Node.SetMIGClients(0, found[0].ID, found[0].Compute[0].ID, 1))
	b.API.ResetRequests()
	if err := b.Unprepare(claim); err == nil {
		t.Error("unprepared")
	}
	b.told("MIGInstanceInUse", "in use", b.Node.Spec().GPUs[0].PCI.String())
	b.metric(p, "gpu_dra_mig_instances_in_use 1")
	b.tainted(p, "-mig-1g-10gb-6", "-mig-1g-10gb-with-me-6", "-mig-1g-20gb-6", "-mig-3g-40gb-4", "-mig-7g-80gb-0", "")
	if n := b.writes(); n != 1 {
		t.Errorf("%d changes of slices for the taints of one GPU", n)
	}
	next, devices := b.wants("next", "1g.10gb", 1)
	b.prepare(next)
	if diff := cmp.Diff([]string{b.Device(0) + "-mig-1g-10gb-5"}, devices); diff != "" {
		t.Errorf("the next claim's (-want +got):\n%s", diff)
	}
	must(t, b.Node.SetMIGClients(0, found[0].ID, found[0].Compute[0].ID, 0))
	b.unprepare(claim)
	b.metric(p, "gpu_dra_mig_instances_in_use 0")
	b.tainted(p)
	b.unprepare(next)
	b.untouched()
}

// tainted waits until those devices of the first GPU, and no others, are kept from new claims.
func (b bed) tainted(p *process.Plugin, want ...string) {
	b.T.Helper()
	b.Eventually("taints", func() error {
		var got []string
		for _, s := range b.published() {
			for _, d := range s.Spec.Devices {
				if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == process.Driver+"/mig-instance-in-use" }) {
					got = append(got, strings.TrimPrefix(d.Name, b.Device(0)))
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("tainted (-want +got):\n%s", diff)
		}
		return nil
	})
	p.WaitReady()
}

// noted is how many instances of layouts the ledger has.
func (b bed) noted() (n int) {
	b.T.Helper()
	files, err := filepath.Glob(filepath.Join(b.DataDir(), "mig", "*.json"))
	must(b.T, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		must(b.T, err)
		var entry struct {
			Layout struct{ Instances []struct{} } `json:"layout"`
		}
		must(b.T, json.Unmarshal(data, &entry))
		n += len(entry.Layout.Instances)
	}
	return n
}

// A process that is killed anywhere while it lays a GPU out is continued by the next one.
func TestKilledWhileLayingOut(t *testing.T) {
	b := newBed(t, "hgx-h100-8")
	b.choose("one")
	settings := append(b.declare(""), process.Flag("mig-devices", "on-demand"), process.Flag("rescan-interval", "1s"))
	one := []string{"1g.10gb:3", "3g.40gb:4"}
	for _, function := range []string{
		"nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance",
	} {
		must(t, b.Node.FailCall(gpusim.CallFault{Function: function, GPU: 0, Hang: true}))
		inCall(function, false).wait(b, b.Bed.Run(settings...))
	}
	for _, function := range []string{"nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"} {
		p := b.Bed.Run(settings...)
		b.laidOut(0, one, []string{"1g-10gb-3", "3g-40gb-4"})
		must(t, b.Node.FailCall(gpusim.CallFault{Function: function, GPU: 0, Hang: true}))
		b.choose("other")
		inCall(function, false).wait(b, p)
		b.choose("one")
	}
	b.choose("other")
	p := b.Bed.Run(settings...)
	b.laidOut(0, []string{"2g.20gb:4"}, []string{"2g-20gb-4"})
	b.choose("one")
	b.laidOut(0, one, []string{"1g-10gb-3", "3g-40gb-4"})
	p.Kill()

	// Before each change of a file, from one layout to the other and back.
	point := 1
	for ; ; point++ {
		p := b.Bed.Run(settings...)
		p.WaitReady()
		trace := p.Trace(tracer.Plan{At: point, Dirs: []string{filepath.Join(b.DataDir(), "mig")}})
		config, want, devices := "other", []string{"2g.20gb:4"}, []string{"2g-20gb-4"}
		if point%2 == 0 {
			config, want, devices = "one", one, []string{"1g-10gb-3", "3g-40gb-4"}
		}
		b.choose(config)
		b.Eventually("the end of the process or of its work", func() error {
			if !p.Running() || slices.Equal(want, b.partitions(0)) && slices.Equal(devices, b.names(0)) && b.noted() == len(want) {
				return nil
			}
			return fmt.Errorf("partitions %v, devices %v, %d instances in the ledger", b.partitions(0), b.names(0), b.noted())
		})
		changes, err := trace.Stop()
		must(t, err)
		survived := !slices.ContainsFunc(changes, func(c tracer.Change) bool { return c.Hit })
		p.Kill()
		next := b.Bed.Run(settings...)
		next.WaitReady()
		b.laidOut(0, want, devices)
		// What the killed one noted and did not do is forgotten, so that the next trace begins
		// with nothing to write.
		b.Eventually("a quiet ledger", func() error {
			if n := b.noted(); n != len(want) {
				return fmt.Errorf("it has %d instances", n)
			}
			return nil
		})
		next.Kill()
		if survived || t.Failed() {
			t.Logf("%d points, the last saw %v", point, changes)
			break
		}
	}
	if point < 4 {
		t.Errorf("only %d points", point)
	}
	b.choose("")
	b.Bed.Run(settings...)
	b.Eventually("the GPU is whole", func() error {
		if b.mode(0) || len(b.partitions(0)) > 0 {
			return fmt.Errorf("mode %t, partitions %v", b.mode(0), b.partitions(0))
		}
		return nil
	})
}
