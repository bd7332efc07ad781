package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-dra/driver/test/cluster/internal/host"
)

// Kubeconfig is the path of the administrator's kubeconfig. It is good on the whole machine.
func (c *Cluster) Kubeconfig() string { return c.path("pki", "admin.kubeconfig") }

// RESTConfig returns the administrator's client configuration.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotUp, err)
	}
	return config, nil
}

// Client returns a client with the administrator's rights.
func (c *Cluster) Client() (kubernetes.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return client, nil
}

// KubeletRoot is node i's /var/lib/kubelet, as the machine sees it.
func (c *Cluster) KubeletRoot(i int) string { return c.nodePath(i, "kubelet") }

// CDIDir is node i's /var/run/cdi, as the machine sees it.
func (c *Cluster) CDIDir(i int) string { return c.nodePath(i, "cdi") }

// Command returns a command inside the cluster's network, from which the addresses of pods
// can be reached, with KUBECONFIG set.
func (c *Cluster) Command(ctx context.Context, line ...string) (*exec.Cmd, error) {
	p, err := c.current()
	if err != nil {
		return nil, err
	}
	return c.command(ctx, append(c.network(p).Enter(), line...)), nil
}

// NodeCommand returns a command on node i: with its mounts and in the cluster's network.
func (c *Cluster) NodeCommand(ctx context.Context, i int, line ...string) (*exec.Cmd, error) {
	holder, ok, err := c.super.Find(mountHolder(i))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s: %w", NodeName(i), ErrNotUp)
	}
	enter := []string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", holder.PID), fmt.Sprintf("--mount=/proc/%d/ns/mnt", holder.PID), "--"}
	return c.command(ctx, append(enter, line...)), nil
}

// Ctr returns a ctr command against node i's containerd, in the kubelet's namespace.
func (c *Cluster) Ctr(ctx context.Context, i int, args ...string) *exec.Cmd {
	return c.command(ctx, append([]string{filepath.Join(c.config.Bin, "ctr"), "-a", c.containerdSocket(i), "-n", "k8s.io"}, args...))
}

func (c *Cluster) command(ctx context.Context, line []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "PATH="+c.super.Path)
	return cmd
}

// Environment is what a shell or a test needs to reach the cluster, in order.
func (c *Cluster) Environment() [][2]string {
	return [][2]string{
		{"KUBECONFIG", c.Kubeconfig()},
		{"CLUSTER_NAME", c.config.Name},
		{"CLUSTER_STATE_ROOT", c.config.StateRoot},
		{"CLUSTER_BIN", c.config.Bin},
		{"CLUSTER_LOGS", c.config.LogDir()},
		{"CLUSTER_NETNS", c.path("netns")},
		{"CLUSTER_NODE", NodeName(0)},
		{"CLUSTER_KUBELET_ROOT", c.KubeletRoot(0)},
		{"CLUSTER_CDI_DIR", c.CDIDir(0)},
		{"CLUSTER_BUSYBOX_IMAGE", BusyboxImage},
		{"CLUSTER_WORKLOAD_IMAGE", WorkloadImage},
	}
}

// Logs returns the names of the components that have a log.
func (c *Cluster) Logs() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(c.config.LogDir(), "*.log"))
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".log"))
	}
	return names, nil
}

// Dump writes what a person needs to understand a failure into dir: the logs, and the
// cluster's objects where the API server still answers.
func (c *Cluster) Dump(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	names, err := c.Logs()
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, keep(c.super.LogFile(name), filepath.Join(dir, name+".log")))
	}
	kubectl := filepath.Join(c.config.Bin, "kubectl")
	for _, kind := range []string{
		"pods", "nodes", "events", "daemonsets", "resourceclaims", "resourceslices", "deviceclasses", "resourceclaimtemplates",
	} {
		out, err := host.Exec(ctx, kubectl, "--kubeconfig="+c.Kubeconfig(), "--request-timeout=5s", "get", kind, "--all-namespaces", "--output=yaml")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, kind+".yaml"), out, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// LogFile is the path of a component's log.
func (c *Cluster) LogFile(name string) string { return c.super.LogFile(name) }
