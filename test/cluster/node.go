package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster/internal/host"
	"github.com/gpu-dra/driver/test/cluster/internal/pki"
	"github.com/gpu-dra/driver/test/cluster/internal/proc"
	"github.com/gpu-dra/driver/test/cluster/internal/render"
)

// Where a node's own folders lie as its processes see them.
const (
	kubeletRoot = "/var/lib/kubelet"
	cdiDynamic  = "/var/run/cdi"
	cdiStatic   = "/etc/cdi"
)

// NodeName is the name of node i, from 0.
func NodeName(i int) string { return "node-" + strconv.Itoa(i) }

func kubeletName(i int) string    { return "kubelet-" + strconv.Itoa(i) }
func containerdName(i int) string { return "containerd-" + strconv.Itoa(i) }

// mountHolder is the process that keeps a node's mount namespace.
func mountHolder(i int) string { return mountsPrefix + strconv.Itoa(i) }

const mountsPrefix = "mounts-"

// isMountHolder is true for the one process that every node has as long as it changes
// something on the machine.
func isMountHolder(p proc.Process) bool {
	return p.Leader && strings.HasPrefix(p.Component, mountsPrefix)
}

func (c *Cluster) nodePath(i int, elements ...string) string {
	return filepath.Join(append([]string{c.path("n" + strconv.Itoa(i))}, elements...)...)
}

// ownFolders are the folders that each node has of its own: below its folder, and where its
// processes see them.
func ownFolders() [][2]string {
	return [][2]string{
		{"kubelet", kubeletRoot},
		{"cdi", cdiDynamic},
		{"etc-cdi", cdiStatic},
		{"pod-logs", "/var/log/pods"},
		{"container-logs", "/var/log/containers"},
		{"cni-cache", "/var/lib/cni"},
	}
}

// mountTargets are the folders that must exist on the machine to be mounted over.
func (c *Cluster) mountTargets() []string {
	// mount(8) makes the first one for itself.
	targets := []string{"/run/mount"}
	for _, f := range ownFolders() {
		targets = append(targets, f[1])
	}
	for _, b := range c.config.Binds {
		targets = append(targets, b.Target)
	}
	return targets
}

// nodeUp makes node i run as configured and waits until it is Ready.
func (c *Cluster) nodeUp(ctx context.Context, p plan, store *pki.Store, i int, note func(string)) error {
	if err := c.network(p).AddAddress(ctx, p.node(i)); err != nil {
		return err
	}
	if err := c.cgroups.Make(c.cgroup(i)); err != nil {
		return err
	}
	note("mounts")
	enter, err := c.mountsUp(ctx, p, i)
	if err != nil {
		return err
	}
	note("containerd")
	if err := c.containerdUp(ctx, p, i, enter); err != nil {
		return err
	}
	note("images")
	if err := c.importImages(ctx, i); err != nil {
		return err
	}
	note("kubelet")
	return c.kubeletUp(ctx, p, store, i, enter)
}

func (c *Cluster) cgroup(i int) string {
	return filepath.Join(c.config.identity(), "n"+strconv.Itoa(i))
}

// holdScript mounts pairs of paths and stays: mounts of the machine come in, none go out.
// With -n, mount keeps no table of its own below /run.
const holdScript = `ready=$1; shift; mount -n --make-rshared /
while [ $# -gt 0 ]; do mount -n --rbind "$1" "$2"; shift 2; done; : >"$ready"; exec sleep infinity`

// mountsUp makes the node's mount namespace and returns the command line to enter it. When
// the mounts must change, everything on the node ends first, since it sees the old ones.
func (c *Cluster) mountsUp(ctx context.Context, p plan, i int) ([]string, error) {
	var pairs []string
	for _, f := range ownFolders() {
		pairs = append(pairs, c.nodePath(i, f[0]), f[1])
	}
	for _, b := range c.config.Binds {
		if b.Node == i || b.Node < 0 {
			pairs = append(pairs, b.Source, b.Target)
		}
	}
	ready := c.nodePath(i, "mounted")
	line := append(c.network(p).Enter(), "unshare", "--mount", "--propagation", "slave", "--", "sh", "-ec", holdScript, "sh", ready)
	command := proc.Command{Args: append(line, pairs...)}
	current, err := c.super.Current(mountHolder(i), command)
	if err != nil {
		return nil, err
	}
	if !current {
		if err := c.nodeDown(ctx, i); err != nil {
			return nil, err
		}
		if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("node mounts: %w", err)
		}
	}
	holder, err := c.holdMounts(ctx, i, command, ready)
	if err != nil {
		return nil, err
	}
	return append(c.network(p).Enter(), "nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", holder.PID), "--"), nil
}

// sysctls are the kernel settings that a kubelet changes for the whole machine.
func sysctls() []string {
	return []string{
		"kernel.panic", "kernel.panic_on_oops", "vm.overcommit_memory", "vm.panic_on_oom",
		"kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes",
	}
}

// holdMounts records what the node is going to change on the machine and starts the holder
// of its mounts, as one step: the last cluster that goes down looks for holders before it
// puts the machine back.
func (c *Cluster) holdMounts(ctx context.Context, i int, command proc.Command, ready string) (holder proc.Process, err error) {
	for _, f := range ownFolders() {
		if err := os.MkdirAll(c.nodePath(i, f[0]), 0o755); err != nil {
			return holder, fmt.Errorf("node folder: %w", err)
		}
	}
	err = c.onMachine(ctx, func() error {
		if err := c.ledger.KeepSysctls(sysctls()...); err != nil {
			return err
		}
		if err := c.ledger.MakeDirectories(c.mountTargets()...); err != nil {
			return err
		}
		holder, err = c.super.Start(ctx, mountHolder(i), command)
		if err != nil {
			return err
		}
		return c.super.WaitReady(ctx, mountHolder(i), 10*time.Second, func(context.Context) error {
			_, err := os.Stat(ready)
			return err
		})
	})
	return holder, err
}

func (c *Cluster) containerdUp(ctx context.Context, p plan, i int, enter []string) error {
	config, err := render.Containerd{
		Dir: c.nodePath(i), Bin: c.config.Bin, SandboxImage: PauseImage, CDIDirs: []string{cdiStatic, cdiDynamic},
	}.TOML()
	if err != nil {
		return err
	}
	network, err := render.CNI("br"+strconv.Itoa(i), p.pods(i).String(), c.nodePath(i, "cni-ipam"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.nodePath(i, "cni.d"), 0o755); err != nil {
		return fmt.Errorf("node folder: %w", err)
	}
	files := map[string]string{"cni.d/10-bridge.conflist": network, "containerd.toml": config}
	if err := c.writeNodeFiles(i, files); err != nil {
		return err
	}
	args := slices.Concat(enter, []string{filepath.Join(c.config.Bin, "containerd"), "--config", c.nodePath(i, "containerd.toml"), "--log-level", "info"})
	if _, err := c.super.Start(ctx, containerdName(i), proc.Command{Args: args, Inputs: []string{config}}); err != nil {
		return err
	}
	return c.super.WaitReady(ctx, containerdName(i), 60*time.Second, func(ctx context.Context) error {
		_, err := host.Exec(ctx, filepath.Join(c.config.Bin, "ctr"), "-a", c.containerdSocket(i), "version")
		return err
	})
}

func (c *Cluster) containerdSocket(i int) string { return c.nodePath(i, "containerd.sock") }

func (c *Cluster) writeNodeFiles(i int, files map[string]string) error {
	for name, content := range files {
		if err := renameio.WriteFile(c.nodePath(i, name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("node configuration: %w", err)
		}
	}
	return nil
}

func (c *Cluster) kubeletUp(ctx context.Context, p plan, store *pki.Store, i int, enter []string) error {
	name, address := NodeName(i), p.node(i).Addr()
	err := store.Issue(name, pki.Identity{
		CommonName: "system:node:" + name, Organizations: []string{"system:nodes"},
		DNSNames: []string{name}, IPs: []net.IP{address.AsSlice()},
	})
	if err != nil {
		return err
	}
	kubeconfig, err := store.Kubeconfig(name, p.server())
	if err != nil {
		return err
	}
	gates, err := render.ParseGates(c.config.gates())
	if err != nil {
		return err
	}
	config, err := render.Kubelet{
		Address: address.String(), CgroupRoot: "/" + c.cgroup(i), RuntimeEndpoint: "unix://" + c.containerdSocket(i),
		ClientCA: store.Path("ca.crt"), Certificate: store.Path(name + ".crt"), Key: store.Path(name + ".key"),
		PluginDir: c.nodePath(i, "volumeplugins"), FeatureGates: gates,
		MaxPods: int32(c.config.MaxPods), SyncFrequency: c.config.SyncFrequency,
	}.YAML()
	if err != nil {
		return err
	}
	if err := c.writeNodeFiles(i, map[string]string{"kubelet.yaml": config}); err != nil {
		return err
	}
	args := slices.Concat(enter, []string{
		filepath.Join(c.config.Bin, "kubelet"),
		"--config=" + c.nodePath(i, "kubelet.yaml"), "--kubeconfig=" + kubeconfig, "--hostname-override=" + name,
		"--node-ip=" + address.String(), "--root-dir=" + kubeletRoot, "--cert-dir=" + c.nodePath(i, "kubelet-pki"),
		"--v=" + strconv.Itoa(c.config.Verbosity),
	})
	command := proc.Command{Args: args, Inputs: []string{config}}
	since := time.Time{}
	if current, err := c.super.Current(kubeletName(i), command); err != nil {
		return err
	} else if !current {
		since = time.Now()
	}
	if _, err := c.super.Start(ctx, kubeletName(i), command); err != nil {
		return err
	}
	return c.waitNode(ctx, i, since)
}

// waitNode waits until the node is Ready by the word of a kubelet that was started at since:
// after a restart, the API server still has the word of the one before.
func (c *Cluster) waitNode(ctx context.Context, i int, since time.Time) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	return c.super.WaitReady(ctx, kubeletName(i), 120*time.Second, func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, NodeName(i), metav1.GetOptions{})
		if err != nil {
			return err
		}
		return readiness(node, since)
	})
}

var errNotReady = errors.New("not Ready")

// readiness is nil for a node that has said it is Ready. Heartbeats have a resolution of a second.
func readiness(node *corev1.Node, since time.Time) error {
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue && !condition.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
			return nil
		}
		return fmt.Errorf("%w: %s: %s", errNotReady, condition.Reason, condition.Message)
	}
	return fmt.Errorf("%w: no such condition yet", errNotReady)
}

// nodeDown ends the node's daemons and containers, as a power cut would, and removes what
// does not outlive one.
func (c *Cluster) nodeDown(ctx context.Context, i int) error {
	errs := []error{
		c.super.Stop(ctx, kubeletName(i), syscall.SIGTERM),
		c.cgroups.Kill(ctx, c.cgroup(i)),
		c.super.Stop(ctx, containerdName(i), syscall.SIGTERM),
		// Shims outlive their containerd by design; they carry its mark.
		c.super.KillAll(ctx, func(p proc.Process) bool { return p.Component == containerdName(i) || p.Component == kubeletName(i) }),
		c.super.Stop(ctx, mountHolder(i), syscall.SIGKILL),
		host.UnmountBelow(c.nodePath(i)),
	}
	for _, volatile := range []string{"s", "cni-ipam", "cni-cache", "cdi", "kubelet/pods", "kubelet/plugins_registry"} {
		errs = append(errs, os.RemoveAll(c.nodePath(i, volatile)))
	}
	if p, err := c.current(); err == nil {
		// The bridge is missing where no pod ever ran.
		_, _ = host.Exec(ctx, "nsenter", append(c.network(p).Enter()[1:], "ip", "link", "del", "br"+strconv.Itoa(i))...)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take %s down: %w", NodeName(i), err)
	}
	return nil
}

// AddNode starts node i of a running cluster.
func (c *Cluster) AddNode(ctx context.Context, i int) error {
	if i < 0 || i >= maxNodes {
		return fmt.Errorf("%w: node %d must be 0 to %d", ErrConfig, i, maxNodes-1)
	}
	p, err := c.current()
	if err != nil {
		return err
	}
	return c.locked(ctx, func() error {
		store, err := c.certificates(p)
		if err != nil {
			return err
		}
		return c.say.Step(NodeName(i)+" is Ready", func(note func(string)) error { return c.nodeUp(ctx, p, store, i, note) })
	})
}
