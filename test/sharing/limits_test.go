package sharing_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/process"
	"github.com/gpu-dra/driver/test/runc"
)

// cgroups are directories that stand for those of a machine with cgroup v2, which the one that
// tests run on may not be. The simulated driver knows a cgroup by its inode alone.
type cgroups struct {
	bed *bed
	// dir is where those of containers are, below the simulated /sys.
	dir string
	// hook is what the plugin installs: it notes in a /proc of its own in which of them a container
	// is, as the kernel would, and becomes the real hook.
	hook string
}

// inContainers is where containers see them.
const inContainers = "/cgroups"

func (b *bed) cgroups() *cgroups {
	b.T.Helper()
	root := filepath.Join(b.Node.SysRoot(), "fs", "cgroup")
	c := &cgroups{bed: b, dir: filepath.Join(root, "pods"), hook: filepath.Join(b.T.TempDir(), "gpu-limit-hook")}
	must(b.T, os.MkdirAll(c.dir, 0o755))
	must(b.T, os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644))
	proc := b.T.TempDir()
	must(b.T, os.WriteFile(c.hook, fmt.Appendf(nil, `#!/bin/sh
set -e
state=$(cat)
pid=$(echo "$state" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
bundle=$(echo "$state" | sed -n 's/.*"bundle": *"\([^"]*\)".*/\1/p')
name=$(sed -n 's|.*GPUSIM_CGROUP=%[1]s/\([a-z]*\)".*|\1|p' "$bundle/config.json")
mkdir -p "%[2]s/$pid"
echo "0::/pods/$name" >"%[2]s/$pid/cgroup"
echo "$state" | %[3]s --proc-root=%[2]s "$@"
`, inContainers, proc, hookProgram), 0o755))
	return c
}

// tenant runs a container in a cgroup of its own.
func (c *cgroups) tenant(name string, answer []kubelet.Device, args ...string) *tenant {
	c.bed.T.Helper()
	must(c.bed.T, os.Mkdir(filepath.Join(c.dir, name), 0o755))
	return c.bed.tenantIn(runc.Container{
		Env:    []string{"GPUSIM_CGROUP=" + inContainers + "/" + name},
		Mounts: []specs.Mount{{Destination: inContainers, Source: c.dir, Type: "bind", Options: []string{"rbind", "ro"}}},
	}, answer, args...)
}

// gone removes the cgroup of a container that has ended, as its runtime does.
func (c *cgroups) gone(name string) {
	c.bed.T.Helper()
	must(c.bed.T, os.Remove(filepath.Join(c.dir, name)))
}

// refused wants that a container is not created, with these words.
func (c *tenant) refused(words ...string) {
	c.bed.T.Helper()
	r := <-c.done
	c.done <- r
	if r.err == nil || !hasAll(r.err.Error(), words) {
		c.bed.T.Errorf("the container ended with %+v, want it refused with %q", r, words)
	}
}

// withLimits makes the driver new enough for limits of memory, and one board too old.
func withLimits(f *nodefile.File) {
	f.Driver = nodefile.Driver{Version: "600.10", CUDA: "13.4"}
	f.GPUs[2].Override = []byte(`{"unsupported": ["memoryLimits"]}`)
}

// Shares whose memory the GPU driver limits: each container is refused what is above its claim's
// part, by the driver, whoever its neighbours are; one that cannot be limited is not created.
func TestLimitsByTheDriver(t *testing.T) {
	b := newBed(t, "t4-4", gpusim.WithFile(withLimits))
	cg := b.cgroups()
	settings := []process.Setting{process.Flag("mps", "false"), process.Flag("limit-hook", cg.hook), process.Flag("shared-devices", `[{"enforcement": "driver", "replicas": 4, "devices": {"indices": [1, 2]}}]`)}
	p := b.start(settings...)
	// The second of them cannot be limited, and is not offered as something else.
	b.event(b.Device(2), "enforcement driver", "Not Supported")
	one, device := b.share("red", "one")
	two, other := b.share("blue", "two")
	if device != b.Device(1) || other != device {
		t.Fatalf("shares of %s and %s, want %s", device, other, b.Device(1))
	}
	oneAnswer, twoAnswer := b.prepare(one), b.prepare(two)
	const part = 15360 / 4
	limit := fmt.Sprintf("cgroup_limit=%d", part)
	first, second := cg.tenant("first", oneAnswer, "--allocate", "3800"), cg.tenant("second", twoAnswer, "--allocate", fmt.Sprint(part))
	first.want(limit, "compute_mode=0", "mps=none")
	first.want("total=3800")
	second.want(limit)
	second.want(fmt.Sprintf("total=%d", part))
	first.ask("allocate 41", "CUDA_ERROR_OUT_OF_MEMORY", "limit of the cgroup")
	first.ask("allocate 40", fmt.Sprintf("total=%d", part))
	// A second container would have the same part again.
	cg.tenant("third", oneAnswer).refused("the share of device "+device, "claim red/one", "another container's")

	// A plugin that was killed is waited for, and knows who has what.
	p.Kill()
	first.end()
	cg.gone("first")
	fourth := cg.tenant("fourth", oneAnswer)
	p = b.start(settings...)
	fourth.want(limit)
	cg.tenant("fifth", twoAnswer).refused("claim blue/two", "another container's")
	second.ask("allocate 1", "CUDA_ERROR_OUT_OF_MEMORY")

	// Without the declaration what was prepared is still limited.
	fourth.end()
	cg.gone("fourth")
	p.Terminate()
	p = b.start(settings[:2]...)
	sixth := cg.tenant("sixth", oneAnswer)
	sixth.want(limit)
	sixth.end()
	second.end()
	b.unprepare(one, two)
	if left, err := filepath.Glob(filepath.Join(b.DataDir(), "limits", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	b.untouched()
	p.Terminate()
	if left, err := filepath.Glob(filepath.Join(b.DataDir(), "*limit*")); err != nil || len(left) > 0 {
		t.Errorf("left behind by a plugin that ended: %v, %v", left, err)
	}
}

// Where the driver has no such limits, or the node no cgroup v2, nothing is offered that promises
// them, and an Event says why.
func TestNoLimitsByTheDriver(t *testing.T) {
	for name, tt := range map[string]struct {
		driver  nodefile.Driver
		cgroups bool
		says    string
	}{
		"an older driver": {nodefile.Driver{Version: "590.44.01", CUDA: "13.1"}, true, "CUDA 13.4"},
		"cgroup v1":       {nodefile.Driver{Version: "600.10", CUDA: "13.4"}, false, "need cgroup v2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "t4-4", gpusim.WithFile(func(f *nodefile.File) { f.Driver = tt.driver }))
			cg := b.cgroups()
			if !tt.cgroups {
				must(t, os.RemoveAll(filepath.Dir(cg.dir)))
			}
			b.start(process.Flag("mps", "false"), process.Flag("limit-hook", cg.hook), process.Flag("shared-devices", `[{"enforcement": "driver", "devices": {"indices": [0]}}]`))
			b.event(b.Device(0), "enforcement driver", tt.says)
			list, err := b.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
			must(t, err)
			var offered []string
			for _, s := range list.Items {
				for _, d := range s.Spec.Devices {
					offered = append(offered, d.Name)
				}
			}
			slices.Sort(offered)
			if diff := cmp.Diff([]string{b.Device(1), b.Device(2), b.Device(3)}, offered); diff != "" {
				t.Errorf("offered (-want +got):\n%s", diff)
			}
		})
	}
}
