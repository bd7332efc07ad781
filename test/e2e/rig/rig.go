// Package rig puts the driver to work on a real cluster of this machine: it builds the image and
// the tools from the repository, makes one simulated GPU machine for each node, installs the
// chart, and reads back what the cluster and its containers say of GPUs. It is for the end-to-end
// tests and for the demonstration on a cluster. It must not know the driver's code: only its
// image, its chart, its API objects and what a container sees.
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/nodefile"
)

// Names of what the rig makes in a cluster.
const (
	// Driver is the name of the driver, and the domain of its attributes.
	Driver = "gpu.nvidia.com"
	// Namespace is where the chart is installed.
	Namespace = "gpu-dra-driver"
	// Release is the name of the chart's release, the one that the documentation uses.
	Release = "gpu-dra-driver"
	// Image is the driver's image without its tag.
	Image = "localhost/gpu-dra-driver"
	// DaemonSet is the chart's name for the node plugin.
	DaemonSet = Release + "-kubelet-plugin"
)

// Config is what a rig is to be.
type Config struct {
	// Repository is the root of the repository, absolute.
	Repository string
	// Out is the folder for what is built, absolute.
	Out string
	// Cluster is the cluster; its nodes and binds are set by New.
	Cluster cluster.Config
	// Presets names the simulated machine of each node, in the nodes' order.
	Presets []string
	// Machines is the folder of the simulated machines, absolute. Each node sees its own as
	// the sub-folder "node".
	Machines string
	// Log takes what the tools say.
	Log io.Writer
}

// Rig is a cluster with the driver, or what it takes to get there. It has no state of its own:
// all is on disk and in the cluster, so that a later process can go on.
type Rig struct {
	Config

	// Nodes looks at the cluster and its nodes. Only the command changes it.
	Nodes *cluster.Cluster
}

// New returns a rig; it builds and starts nothing.
func New(c Config) (*Rig, error) {
	if len(c.Presets) == 0 {
		return nil, errors.New("presets: name a simulated machine for each node")
	}
	c.Cluster.Nodes, c.Cluster.Binds = len(c.Presets), nil
	r := &Rig{Config: c}
	for i := range c.Presets {
		r.Cluster.Binds = append(r.Cluster.Binds, cluster.Bind{Node: i, Source: r.MachineDir(i), Target: r.Mount()})
	}
	nodes, err := cluster.New(r.Cluster, nil)
	if err != nil {
		return nil, err
	}
	r.Nodes = nodes
	return r, nil
}

// MachineDir is where the simulated machine of node i lies on this machine.
func (r *Rig) MachineDir(i int) string {
	return filepath.Join(r.Machines, fmt.Sprintf("%d-%s", i, r.Presets[i]))
}

// Mount is where each node sees its own simulated machine.
func (r *Rig) Mount() string { return filepath.Join(r.Machines, "node") }

// Client speaks to the API server as an administrator, as fast as it can.
func (r *Rig) Client() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", r.Nodes.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return client, nil
}

// tool is the path of a program that BuildTools makes.
func (r *Rig) tool(name string) string { return filepath.Join(r.Out, "bin", name) }

// BuildTools builds the commands that the rig uses. It costs a second when nothing changed.
func (r *Rig) BuildTools(ctx context.Context) error {
	for _, tool := range []struct{ name, dir, pkg string }{
		{"cluster", ".", "./test/cluster/cmd/cluster"},
		{"chartctl", "test/chart", "./cmd/chartctl"},
		{"imagebuild", "deployments/container", "./cmd/imagebuild"},
	} {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", r.tool(tool.name), tool.pkg)
		cmd.Dir = filepath.Join(r.Repository, tool.dir)
		if err := r.run(cmd); err != nil {
			return err
		}
	}
	return nil
}

// BuildImage builds the driver's image from the repository, as the given version, and returns
// the path of its archive. The version is also the image's tag.
func (r *Rig) BuildImage(ctx context.Context, version string) (archive string, err error) {
	bin := filepath.Join(r.Out, version)
	build := exec.CommandContext(ctx, filepath.Join(r.Repository, "deployments/container/build-binaries.sh"))
	build.Env = append(os.Environ(), "OUT="+bin, "VERSION="+version)
	if err := r.run(build); err != nil {
		return "", err
	}
	archive = filepath.Join(r.Out, "gpu-dra-driver-"+version+".tar")
	pack := exec.CommandContext(ctx, r.tool("imagebuild"),
		"--config", filepath.Join(r.Repository, "deployments/container/image.yaml"),
		"--define", "BIN="+bin, "--define", "VERSION="+version, "--name", Image+":"+version, "--out", archive)
	return archive, r.run(pack)
}

// Revision is the rig with image and chart of another revision of the repository, which git has. The tools
// stay those of this one.
func (r *Rig) Revision(ctx context.Context, revision string) (*Rig, error) {
	other := *r
	other.Repository = filepath.Join(r.Out, "revision")
	if err := os.RemoveAll(other.Repository); err != nil {
		return nil, fmt.Errorf("revision %s: %w", revision, err)
	}
	if err := os.MkdirAll(other.Repository, 0o755); err != nil {
		return nil, fmt.Errorf("revision %s: %w", revision, err)
	}
	archive := other.Repository + ".tar"
	if err := r.run(exec.CommandContext(ctx, "git", "-C", r.Repository, "archive", "--output", archive, revision)); err != nil {
		return nil, err
	}
	return &other, r.run(exec.CommandContext(ctx, "tar", "-C", other.Repository, "-xf", archive))
}

// ClusterCommand runs the command of the test cluster on the rig's cluster.
func (r *Rig) ClusterCommand(ctx context.Context, args ...string) error {
	line := []string{
		"--name", r.Cluster.Name, "--bin", r.Cluster.Bin, "--state-root", r.Cluster.StateRoot,
		"--nodes", fmt.Sprint(r.Cluster.Nodes), "--features", r.Cluster.Features,
	}
	if c := r.Cluster.RuntimeConfig; c != "" {
		line = append(line, "--runtime-config", c)
	}
	for _, b := range r.Cluster.Binds {
		line = append(line, "--bind", fmt.Sprintf("%d@%s:%s", b.Node, b.Source, b.Target))
	}
	return r.run(exec.CommandContext(ctx, r.tool("cluster"), append(line, args...)...))
}

// Up makes the machines that are missing, builds the cluster's programs where that is needed,
// and starts the cluster.
func (r *Rig) Up(ctx context.Context) error {
	for i := range r.Presets {
		if _, err := r.Machine(ctx, i); err != nil {
			return err
		}
	}
	if err := r.ClusterCommand(ctx, "build"); err != nil {
		return err
	}
	return r.ClusterCommand(ctx, "up")
}

// Down takes the cluster down and removes the machines. With forget, also the cluster's data.
func (r *Rig) Down(ctx context.Context, forget bool) error {
	how := "down"
	if forget {
		how = "reset"
	}
	if err := r.ClusterCommand(ctx, how); err != nil {
		return err
	}
	for i := range r.Presets {
		if err := gpusim.Remove(r.MachineDir(i)); err != nil && !errors.Is(err, gpusim.ErrNotANode) {
			return err
		}
	}
	// Empty by now. The cluster leaves the place of its mounts while another cluster runs.
	folders := []string{r.Mount(), r.Machines}
	for i := range r.Presets {
		folders = append([]string{r.MachineDir(i)}, folders...)
	}
	for _, folder := range folders {
		if err := os.Remove(folder); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("folder of the machines: %w", err)
		}
	}
	return nil
}

// Machine returns node i's simulated machine, made from its preset if it is not there.
func (r *Rig) Machine(ctx context.Context, i int) (*gpusim.Node, error) {
	n, err := gpusim.Open(r.MachineDir(i))
	if err == nil || !errors.Is(err, gpusim.ErrNotANode) {
		return n, err
	}
	return r.NewMachine(ctx, i)
}

// NewMachine makes node i's simulated machine anew. No plugin may be running on the node.
func (r *Rig) NewMachine(ctx context.Context, i int) (*gpusim.Node, error) {
	file, err := nodefile.Preset(r.Presets[i])
	if err != nil {
		return nil, err
	}
	return r.MakeMachine(ctx, i, file)
}

// MakeMachine makes node i another machine than its preset says. No plugin may be running on
// the node; NewMachine brings the preset back.
func (r *Rig) MakeMachine(ctx context.Context, i int, file *nodefile.File) (*gpusim.Node, error) {
	// UUIDs of two machines never meet.
	return gpusim.Create(ctx, r.MachineDir(i), file, gpusim.WithSeed(fmt.Sprintf("%s-%d", r.Cluster.Name, i)))
}

// run runs a command; its output goes to the log, and into the error where it fails.
func (r *Rig) run(cmd *exec.Cmd) error {
	began := time.Now()
	var said bytes.Buffer
	cmd.Stdout = io.MultiWriter(r.Log, &said)
	cmd.Stderr = cmd.Stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s, after %s: %w\n%s", strings.Join(cmd.Args, " "), time.Since(began).Round(time.Second), err, tail(said.String(), 40))
	}
	return nil
}

// tail keeps the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
