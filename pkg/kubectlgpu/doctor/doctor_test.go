package doctor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/doctor"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	. "github.com/gpu-dra/driver/pkg/kubectlgpu/statetest"
)

const healthy = `
apiVersion: v1
kind: Pod
metadata: {name: plugin, namespace: gpu-dra-driver, labels: {app.kubernetes.io/name: gpu-dra-driver, app.kubernetes.io/component: kubelet-plugin}}
spec: {nodeName: node-0}
status: {conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-0, labels: {nvidia.com/gpu.present: "true"}}
status: {nodeInfo: {kubeletVersion: v1.37.2}}
`

func cluster(t *testing.T) *state.State {
	t.Helper()
	s := Machines(t, "t4-4", 1, false)
	Add(t, s, healthy)
	return s
}

func check(t *testing.T, s *state.State) finding.Report {
	t.Helper()
	return doctor.Check(t.Context(), doctor.Cluster{State: s, Driver: Driver})
}

func TestHealthyCluster(t *testing.T) {
	r := check(t, cluster(t))
	for _, f := range r.Findings {
		if f.Severity != finding.OK {
			t.Errorf("%+v", f)
		}
	}
	if len(r.Findings) < 4 {
		t.Errorf("only %d findings", len(r.Findings))
	}
}

// Each fault is found by its check, with a way out.
func TestFaults(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil          func(t *testing.T, s *state.State)
		subject, check string
		message        string
	}{
		"unread":              {func(_ *testing.T, s *state.State) { s.Unread = []state.Unread{{Kind: "Pods", Err: os.ErrPermission}} }, "cluster", "access", "Pods could not be read"},
		"old kubelet":         {func(_ *testing.T, s *state.State) { s.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.33.9" }, "node node-0", "version", "v1.33.9"},
		"plugin is not ready": {func(_ *testing.T, s *state.State) { s.Pods[0].Status.Conditions = nil }, "node node-0", "plugin", "is not ready"},
		"no slices":           {func(_ *testing.T, s *state.State) { s.Slices = nil }, "node node-0", "slices", "no ResourceSlice"},
		"empty pool":          {func(_ *testing.T, s *state.State) { s.Slices[0].Spec.Devices = nil }, "node node-0", "driver", "publishes no device"},
		"no plugin":           {func(_ *testing.T, s *state.State) { s.Slices, s.Pods = nil, nil }, "node node-0", "plugin", "no plugin"},
		"nothing":             {func(_ *testing.T, s *state.State) { *s = state.State{} }, "cluster", "plugin", "no pod of the driver"},
		"incomplete pool":     {func(_ *testing.T, s *state.State) { s.Slices[0].Spec.Pool.ResourceSliceCount = 3 }, "pool node-0", "slices", "1 of 3 slices"},
		"no class":            {func(_ *testing.T, s *state.State) { s.Classes = nil }, "class gpu.nvidia.com", "class", "the class is missing"},
		"broken class": {func(t *testing.T, s *state.State) {
			Add(t, s, "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: bad}\nspec: {selectors: [{cel: {expression: nonsense}}]}\n")
		}, "class bad", "selector", "nonsense"},
		"unguarded class": {func(t *testing.T, s *state.State) {
			Add(t, s, "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: bad}\nspec: {selectors: [{cel: {expression: 'device.attributes[\"gpu.nvidia.com\"].x == \"y\"'}}]}\n")
		}, "class bad", "selector", "fails on device"},
		"device plugin": {func(t *testing.T, s *state.State) {
			s.Nodes = nil
			Add(t, s, "apiVersion: v1\nkind: Node\nmetadata: {name: node-0}\nstatus: {allocatable: {nvidia.com/gpu: 4}}\n")
		}, "node node-0", "device plugin", "nvidia.com/gpu: 4"},
		"its slices are not ours":     {func(_ *testing.T, s *state.State) { s.Slices[0].Spec.Devices[0].Name = "gpu-0" }, "node node-0", "other driver", "device gpu-0 was published by NVIDIA's"},
		"its partitions are not ours": {func(_ *testing.T, s *state.State) { s.Slices[0].Spec.Devices[0].Name = "gpu-0-mig-1g10gb-19-0" }, "node node-0", "other driver", "was published by NVIDIA's"},
		"other driver": {func(_ *testing.T, s *state.State) {
			twin := s.Slices[0].DeepCopy()
			twin.Name, twin.Spec.Driver = "twin", "other.example.com"
			s.Slices = append(s.Slices, twin)
		}, "node node-0", "other driver", "other.example.com publishes GPU"},
		"taint": {func(_ *testing.T, s *state.State) {
			Taint(s, "example.com/xid", resourceapi.DeviceTaintEffectNoSchedule, Names(s, "node-0", "gpu")[0])
		}, "node node-0", "health", "example.com/xid=79:NoSchedule"},
		"device is gone": {func(_ *testing.T, s *state.State) { Take(s, "c", "node-0/gpu-gone") }, "claim team-a/c", "device", "gpu-gone"},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t)
			tc.spoil(t, s)
			r := check(t, s)
			for _, f := range r.Findings {
				if f.Subject == tc.subject && f.Check == tc.check && f.Severity != finding.OK && strings.Contains(f.Message, tc.message) {
					if f.Why == "" || f.Fix == "" {
						t.Errorf("no way out: %+v", f)
					}
					return
				}
			}
			t.Errorf("not found in %+v", r.Findings)
		})
	}
}

// A MIG manager is in the way only where partitions are made for claims.
func TestMIGManager(t *testing.T) {
	for preset, partitions := range map[string]bool{"t4-4": false, "hgx-h100-8": true} {
		s := Machines(t, preset, 1, partitions)
		s.Nodes = nil
		Add(t, s, strings.Replace(healthy, `nvidia.com/gpu.present: "true"`, `nvidia.com/gpu.deploy.mig-manager: "true"`, 1))
		found := slices.ContainsFunc(check(t, s).Findings, func(f finding.Finding) bool {
			return f.Subject == "node node-0" && f.Check == "mig manager" && f.Severity == finding.Error
		})
		if found != partitions {
			t.Errorf("%s: found is %t", preset, found)
		}
	}
}

func waiting(t *testing.T) *state.State {
	t.Helper()
	s := Machines(t, "t4-4", 1, false)
	Add(t, s, strings.Replace(healthy, `conditions: [{type: Ready, status: "True"}]`, `containerStatuses: [{name: plugin, state: {waiting: {reason: ImagePullBackOff, message: no such image}}}]`, 1))
	return s
}

func TestWaitingPlugin(t *testing.T) {
	for _, f := range check(t, waiting(t)).Findings {
		if f.Check == "plugin" && !strings.Contains(f.Message, "container plugin waits: ImagePullBackOff no such image") {
			t.Errorf("%+v", f)
		}
	}
}

func node(t *testing.T, files map[string]string) doctor.Node {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return doctor.Node{
		DriverRoot: root, DevRoot: root, CDIDir: filepath.Join(root, "cdi"), KubeletDir: filepath.Join(root, "kubelet"),
		RuntimeConfig: filepath.Join(root, "config.toml"), Driver: Driver,
	}
}

func goodNode() map[string]string {
	return map[string]string{
		"usr/lib64/libnvidia-ml.so.1": "", "dev/nvidiactl": "", "dev/nvidia0": "", "cdi/gpu.nvidia.com-driver.json": "{}",
		"kubelet/plugins_registry/gpu.nvidia.com-reg.sock": "", "config.toml": "version = 3\n  enable_cdi = true\n",
	}
}

func TestNode(t *testing.T) {
	for _, f := range doctor.CheckNode(node(t, goodNode())).Findings {
		if f.Severity != finding.OK {
			t.Errorf("%+v", f)
		}
	}
	for file, want := range map[string]string{
		"usr/lib64/libnvidia-ml.so.1": "driver", "dev/nvidiactl": "device nodes", "dev/nvidia0": "device nodes", "cdi/gpu.nvidia.com-driver.json": "CDI",
		"kubelet/plugins_registry/gpu.nvidia.com-reg.sock": "registration",
	} {
		files := goodNode()
		delete(files, file)
		expect(t, doctor.CheckNode(node(t, files)), want)
	}
	off := goodNode()
	off["config.toml"] = "enable_cdi = false\n"
	expect(t, doctor.CheckNode(node(t, off)), "runtime")
	for _, silent := range []string{"", "version = 3\n"} {
		files := goodNode()
		files["config.toml"] = silent
		if silent == "" {
			delete(files, "config.toml")
		}
		expect(t, doctor.CheckNode(node(t, files)), "")
	}
}

// expect checks that the only bad finding is of a check; none when it is empty.
func expect(t *testing.T, r finding.Report, check string) {
	t.Helper()
	var bad []finding.Finding
	for _, f := range r.Findings {
		if f.Severity != finding.OK {
			bad = append(bad, f)
		}
	}
	if check == "" && len(bad) == 0 {
		return
	}
	if len(bad) != 1 || bad[0].Check != check || bad[0].Fix == "" {
		t.Errorf("found %+v, want one of %q", bad, check)
	}
}
