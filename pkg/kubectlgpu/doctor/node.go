package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
)

// Node names the directories of the node that doctor runs on.
type Node struct {
	// DriverRoot has the driver's libraries, DevRoot the directory dev, CDIDir the specs of the
	// runtime, KubeletDir the kubelet's state, and RuntimeConfig is containerd's configuration.
	DriverRoot, DevRoot, CDIDir, KubeletDir, RuntimeConfig string
	// Driver is the DRA driver's name.
	Driver string
}

// CheckNode looks at the chain on one node, from the GPU driver up.
func CheckNode(n Node) finding.Report {
	r := finding.Report{Of: "DoctorReport"}
	n.library(&r)
	n.nodes(&r)
	n.cdi(&r)
	n.runtime(&r)
	n.registration(&r)
	return r
}

const here = "this node"

func found(patterns ...string) string {
	for _, p := range patterns {
		if names, err := filepath.Glob(p); err == nil && len(names) > 0 {
			return names[0]
		}
	}
	return ""
}

func (n Node) library(r *finding.Report) {
	const name = "libnvidia-ml.so.1"
	var places []string
	for _, dir := range []string{"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib"} {
		places = append(places, filepath.Join(n.DriverRoot, dir, name))
	}
	if at := found(places...); at != "" {
		fine(r, here, "driver", at)
		return
	}
	r.Add(finding.Finding{
		Subject: here, Check: "driver", Severity: finding.Error, Message: fmt.Sprintf("%s was not found below %s", name, n.DriverRoot),
		Why: "the plugin talks to the GPUs through this library", Fix: "install the GPU driver, or name its root with --driver-root (a driver container has it in /run/nvidia/driver)",
	})
}

func (n Node) nodes(r *finding.Report) {
	dev := filepath.Join(n.DevRoot, "dev")
	for _, name := range []string{"nvidiactl", "nvidia[0-9]*"} {
		if at := found(filepath.Join(dev, name)); at != "" {
			fine(r, here, "device nodes", at)
			continue
		}
		r.Add(finding.Finding{
			Subject: here, Check: "device nodes", Severity: finding.Error, Message: fmt.Sprintf("no %s in %s", name, dev),
			Why: "containers reach a GPU through its device node", Fix: "load the kernel module and make the nodes: nvidia-modprobe -c 0 -u, or run nvidia-smi once",
		})
	}
}

func (n Node) cdi(r *finding.Report) {
	base := filepath.Join(n.CDIDir, n.Driver+"-driver.json")
	switch _, err := os.Stat(n.CDIDir); {
	case err != nil:
		r.Add(finding.Finding{
			Subject: here, Check: "CDI", Severity: finding.Error, Message: err.Error(),
			Why: "the driver writes there what the runtime adds to containers", Fix: "name the directory with --cdi-dir; it must be one that the runtime reads",
		})
	case found(base) == "":
		r.Add(finding.Finding{
			Subject: here, Check: "CDI", Severity: finding.Warning, Message: base + " is not there",
			Why: "it is written with the first claim on this node, and tells the runtime of the driver's libraries", Fix: "if claims fail on this node, look at the plugin's log for the reason",
		})
	default:
		fine(r, here, "CDI", base)
	}
}

func (n Node) runtime(r *finding.Report) {
	text, err := os.ReadFile(n.RuntimeConfig)
	if err != nil {
		fine(r, here, "runtime", fmt.Sprintf("%s is not there: containerd 2 has CDI on by default", n.RuntimeConfig))
		return
	}
	for _, line := range strings.Split(string(text), "\n") {
		key, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(key) != "enable_cdi" {
			continue
		}
		if strings.TrimSpace(value) == "true" {
			fine(r, here, "runtime", "CDI is on")
			return
		}
		r.Add(finding.Finding{
			Subject: here, Check: "runtime", Severity: finding.Error, Message: fmt.Sprintf("%s has enable_cdi = %s", n.RuntimeConfig, strings.TrimSpace(value)),
			Why: "the runtime ignores what the driver asks to add to containers", Fix: "set enable_cdi = true and restart containerd",
		})
		return
	}
	fine(r, here, "runtime", n.RuntimeConfig+" does not turn CDI off")
}

func (n Node) registration(r *finding.Report) {
	pattern := filepath.Join(n.KubeletDir, "plugins_registry", n.Driver+"*.sock")
	if at := found(pattern, filepath.Join(n.KubeletDir, "plugins_registry", "*"+n.Driver+"*")); at != "" {
		fine(r, here, "registration", at)
		return
	}
	r.Add(finding.Finding{
		Subject: here, Check: "registration", Severity: finding.Error, Message: pattern + " is not there",
		Why: "the kubelet finds the plugin by this socket", Fix: "is the plugin running on this node, with the kubelet's real directories (chart: kubeletPlugin.kubeletDir)?",
	})
}
