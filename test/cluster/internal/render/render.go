// Package render writes the configuration of a node's daemons: pure functions from
// settings to text. It starts nothing and reads nothing.
package render

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/template"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

//go:embed containerd.toml.tmpl
var containerdTemplate string

// Containerd is what differs between the containerd configurations of nodes.
type Containerd struct {
	// Dir is the node's folder; Bin holds runc and, below cni, the network plugins.
	Dir, Bin string
	// SandboxImage is the image that keeps a pod's namespaces.
	SandboxImage string
	// CDIDirs are searched for device specifications, as seen on the node.
	CDIDirs []string
}

// TOML returns containerd's configuration, version 4 (containerd 2.4).
func (c Containerd) TOML() (string, error) {
	t, err := template.New("containerd.toml").Parse(containerdTemplate)
	if err != nil {
		return "", fmt.Errorf("containerd configuration: %w", err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, c); err != nil {
		return "", fmt.Errorf("containerd configuration: %w", err)
	}
	return out.String(), nil
}

// CNI returns the network configuration of a node: one bridge, one subnet.
func CNI(bridge, subnet, dataDir string) (string, error) {
	raw, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0", "name": "pods",
		"plugins": []any{map[string]any{
			"type": "bridge", "bridge": bridge, "isDefaultGateway": true, "ipMasq": false,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": dataDir,
				"ranges": []any{[]any{map[string]any{"subnet": subnet}}},
			},
		}},
	}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("network configuration: %w", err)
	}
	return string(raw) + "\n", nil
}

// Kubelet is what differs between the kubelet configurations of nodes. A zero value leaves
// Kubernetes' own default.
type Kubelet struct {
	Address, CgroupRoot, RuntimeEndpoint  string
	ClientCA, Certificate, Key, PluginDir string
	FeatureGates                          map[string]bool
	MaxPods                               int32
	SyncFrequency                         time.Duration
}

// YAML returns the kubelet's configuration. Past what a node without systemd, DNS and
// iptables needs, Kubernetes' defaults hold, so that measured latencies are those of a
// usual node.
func (k Kubelet) YAML() (string, error) {
	c := kubeletconfig.KubeletConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"},
		Address:  k.Address, Port: 10250, HealthzBindAddress: k.Address,
		ContainerRuntimeEndpoint: k.RuntimeEndpoint,
		CgroupDriver:             "cgroupfs", CgroupRoot: k.CgroupRoot, FailCgroupV1: ptr.To(false),
		Authentication: kubeletconfig.KubeletAuthentication{
			Anonymous: kubeletconfig.KubeletAnonymousAuthentication{Enabled: ptr.To(false)},
			Webhook:   kubeletconfig.KubeletWebhookAuthentication{Enabled: ptr.To(true)},
			X509:      kubeletconfig.KubeletX509Authentication{ClientCAFile: k.ClientCA},
		},
		Authorization: kubeletconfig.KubeletAuthorization{Mode: kubeletconfig.KubeletAuthorizationModeWebhook},
		TLSCertFile:   k.Certificate, TLSPrivateKeyFile: k.Key,
		VolumePluginDir: k.PluginDir,
		ResolverConfig:  ptr.To(""),
		// No DNS runs; an address in the pod itself refuses at once instead of timing out,
		// and without one each pod would get a warning event.
		ClusterDNS: []string{"127.0.0.1"}, ClusterDomain: "cluster.local",
		MakeIPTablesUtilChains: ptr.To(false),
		FailSwapOn:             ptr.To(false),
		// A nearly full disk of the testing machine must not evict pods, and images, which
		// nothing can pull again, are never collected.
		EvictionHard: map[string]string{
			"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
		ImageGCHighThresholdPercent: ptr.To[int32](100),
		MaxPods:                     k.MaxPods,
		SyncFrequency:               metav1.Duration{Duration: k.SyncFrequency},
		OOMScoreAdj:                 ptr.To[int32](0),
		FeatureGates:                k.FeatureGates,
	}
	raw, err := yaml.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("kubelet configuration: %w", err)
	}
	return string(raw), nil
}

// ParseGates reads "A=true,B=false".
func ParseGates(s string) (map[string]bool, error) {
	gates := map[string]bool{}
	for pair := range strings.SplitSeq(s, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(value)
		if err != nil || name == "" {
			return nil, fmt.Errorf("feature gate %q: must be NAME=true or NAME=false", pair)
		}
		gates[name] = on
	}
	return gates, nil
}
