package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

const (
	defaultDriver = "gpu.nvidia.com"
	flagDriver    = "driver-name"
)

// source says where the objects come from.
type source struct {
	cmd    *cobra.Command
	kube   *genericclioptions.ConfigFlags
	files  []string
	nodes  int
	driver string
	preset presetFlags
}

func newSource(kube *genericclioptions.ConfigFlags, cmd *cobra.Command) *source {
	s := &source{kube: kube, cmd: cmd}
	fs := cmd.Flags()
	fs.StringSliceVar(&s.files, "from", nil, "read saved objects instead of a cluster: files or folders of YAML or JSON, such as one of `kubectl gpu gather`")
	fs.IntVar(&s.nodes, "nodes", 1, "how many nodes of --preset the cluster has")
	fs.StringVar(&s.driver, flagDriver, defaultDriver, "name of the DRA driver; empty for the devices of all drivers")
	s.preset.addTo(cmd, "look at a cluster of empty nodes of this kind instead of a real one: "+strings.Join(preset.Names(), ", "))
	return s
}

// load reads the objects.
func (s *source) load(ctx context.Context) (*state.State, error) {
	switch {
	case len(s.files) > 0 && s.preset.name != "":
		return nil, errors.New("--from and --preset are two sources: use one")
	case s.preset.name == "" && s.nodes != 1:
		return nil, errors.New("--nodes belongs to --preset")
	case s.preset.name == "" && s.preset.tuned():
		return nil, fmt.Errorf("--%s say what nodes of --preset offer: add --preset, or leave them out", strings.Join(tuning(), ", --"))
	case len(s.files) > 0:
		return state.FromFiles(s.files...)
	case s.preset.name != "":
		if err := atMost("nodes", s.nodes); err != nil {
			return nil, err
		}
		return s.thought()
	}
	found, _, err := s.cluster(ctx)
	return found, err
}

// loadAll is load with the feature gates, which take a cluster longer to tell than all objects.
func (s *source) loadAll(ctx context.Context) (*state.State, error) {
	if len(s.files) > 0 || s.preset.name != "" || s.nodes != 1 || s.preset.tuned() {
		return s.load(ctx)
	}
	found, client, err := s.cluster(ctx)
	if err != nil {
		return nil, err
	}
	found.ReadFeatures(ctx, client.Discovery().RESTClient())
	return found, nil
}

func (s *source) cluster(ctx context.Context) (*state.State, kubernetes.Interface, error) {
	client, err := client(s.kube)
	if err != nil {
		return nil, nil, err
	}
	found, err := state.FromCluster(ctx, client)
	if err != nil {
		return nil, nil, fmt.Errorf("%w (--from and --preset work without a cluster)", err)
	}
	return found, client, nil
}

// thought is a cluster of nodes of a preset, whose driver has the name in their values unless a flag
// gives it one.
func (s *source) thought() (*state.State, error) {
	name := ""
	if s.cmd.Flags().Changed(flagDriver) {
		name = s.driverName()
	}
	machine, settings, err := s.preset.machine(name)
	if err != nil {
		return nil, err
	}
	s.driver = settings.DriverName
	return machine.State(s.nodes, settings)
}

// driverName is one even where the devices of all are asked for.
func (s *source) driverName() string {
	if s.driver == "" {
		return defaultDriver
	}
	return s.driver
}

// namespace is the one of -n or of the kubeconfig's context.
func (s *source) namespace() string {
	namespace, _, err := s.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil || namespace == "" {
		// Without a kubeconfig: saved files need none.
		return "default"
	}
	return namespace
}

func client(kube *genericclioptions.ConfigFlags) (kubernetes.Interface, error) {
	config, err := kube.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("the cluster's configuration: %w", err)
	}
	return kubernetes.NewForConfig(config)
}

// choice checks the value of a flag that takes some words only.
func choice(flag, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("--%s %q is none of %s", flag, value, strings.Join(allowed, ", "))
}

// atMost checks a flag that says how often.
func atMost(flag string, value int) error {
	const most = 1000
	if value < 1 || value > most {
		return fmt.Errorf("--%s %d: use 1 to %d", flag, value, most)
	}
	return nil
}
