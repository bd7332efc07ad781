package render

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

func TestContainerdKeepsEverythingInTheNodesFolder(t *testing.T) {
	got, err := Containerd{Dir: "/s/n0", Bin: "/b", SandboxImage: "localhost/pause:1", CDIDirs: []string{"/etc/cdi", "/var/run/cdi"}}.TOML()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"version = 4", `root = "/s/n0/c"`, `state = "/s/n0/s"`, `address = "/s/n0/containerd.sock"`, `address = "/s/n0/containerd.sock.ttrpc"`,
		`socket_dir = "/s/n0/s/sh"`, `path = "/s/n0/opt"`, `Root = "/s/n0/s/runc"`, `sandbox = "localhost/pause:1"`,
		`cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]`, `bin_dirs = ["/b/cni"]`, `conf_dir = "/s/n0/cni.d"`, `BinaryName = "/b/runc"`,
		"netns_mounts_under_state_dir = true", "restrict_oom_score_adj = true",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "{{") || strings.Contains(got, "<no value>") {
		t.Errorf("left unfilled:\n%s", got)
	}
}

func TestCNI(t *testing.T) {
	got, err := CNI("br3", "198.19.3.0/24", "/s/n3/ipam")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		CNIVersion string `json:"cniVersion"`
		Plugins    []struct {
			Type, Bridge string
			IPAM         struct {
				Type, DataDir string
				Ranges        [][]struct{ Subnet string }
			}
		}
	}
	if err := json.Unmarshal([]byte(got), &c); err != nil {
		t.Fatal(err)
	}
	p := c.Plugins[0]
	if c.CNIVersion != "1.0.0" || p.Type != "bridge" || p.Bridge != "br3" || p.IPAM.DataDir != "/s/n3/ipam" || p.IPAM.Ranges[0][0].Subnet != "198.19.3.0/24" {
		t.Errorf("got %+v", c)
	}
}

func kubelet(t *testing.T, k Kubelet) kubeletconfig.KubeletConfiguration {
	t.Helper()
	raw, err := k.YAML()
	if err != nil {
		t.Fatal(err)
	}
	var c kubeletconfig.KubeletConfiguration
	if err := yaml.UnmarshalStrict([]byte(raw), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestKubelet(t *testing.T) {
	c := kubelet(t, Kubelet{
		Address: "198.18.0.2", CgroupRoot: "/kc-a/n0", RuntimeEndpoint: "unix:///s/n0/containerd.sock",
		ClientCA: "/p/ca.crt", Certificate: "/p/n.crt", Key: "/p/n.key", PluginDir: "/s/n0/v",
		FeatureGates: map[string]bool{"DRAListTypeAttributes": true}, MaxPods: 42, SyncFrequency: 10 * time.Second,
	})
	if c.Address != "198.18.0.2" || c.CgroupRoot != "/kc-a/n0" || c.ContainerRuntimeEndpoint != "unix:///s/n0/containerd.sock" {
		t.Errorf("got %+v", c)
	}
	if c.MaxPods != 42 || c.SyncFrequency.Duration != 10*time.Second || !c.FeatureGates["DRAListTypeAttributes"] {
		t.Errorf("options are lost: %d, %s, %v", c.MaxPods, c.SyncFrequency.Duration, c.FeatureGates)
	}
	if *c.Authentication.Anonymous.Enabled || c.Authorization.Mode != kubeletconfig.KubeletAuthorizationModeWebhook || c.ReadOnlyPort != 0 {
		t.Error("the kubelet is open to anybody")
	}
	if *c.FailCgroupV1 {
		t.Error("the kubelet refuses cgroup version 1")
	}
}

// Latencies measured on this cluster are those of a usual node only with usual settings.
func TestKubeletLeavesDefaults(t *testing.T) {
	c := kubelet(t, Kubelet{})
	zero := map[string]any{
		"syncFrequency": c.SyncFrequency.Duration, "nodeStatusUpdateFrequency": c.NodeStatusUpdateFrequency.Duration,
		"nodeStatusReportFrequency": c.NodeStatusReportFrequency.Duration, "fileCheckFrequency": c.FileCheckFrequency.Duration,
		"runtimeRequestTimeout": c.RuntimeRequestTimeout.Duration,
	}
	for name, value := range zero {
		if value != time.Duration(0) {
			t.Errorf("%s is set to %v", name, value)
		}
	}
	if c.MaxPods != 0 || c.KubeAPIQPS != nil || len(c.FeatureGates) != 0 {
		t.Errorf("set: maxPods %d, kubeAPIQPS %v, gates %v", c.MaxPods, c.KubeAPIQPS, c.FeatureGates)
	}
}

func TestParseGates(t *testing.T) {
	got, err := ParseGates(" A=true,B=false, ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"A": true, "B": false}, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"A", "A=", "A=maybe", "=true", "A=true;B=true"} {
		if _, err := ParseGates(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func FuzzParseGates(f *testing.F) {
	f.Add("A=true,B=false")
	f.Add("=")
	f.Fuzz(func(t *testing.T, s string) {
		gates, err := ParseGates(s)
		if err != nil {
			return
		}
		for name := range gates {
			if name == "" || strings.ContainsAny(name, "=,") {
				t.Errorf("gate %q from %q", name, s)
			}
		}
	})
}
