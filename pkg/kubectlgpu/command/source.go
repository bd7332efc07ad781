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

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	"github.com/gpu-dra/driver/pkg/offer"
)

const defaultDriver = "gpu.nvidia.com"

// source says where the objects come from.
type source struct {
	kube   *genericclioptions.ConfigFlags
	files  []string
	nodes  int
	driver string
	preset presetFlags
}

func newSource(kube *genericclioptions.ConfigFlags, cmd *cobra.Command) *source {
	s := &source{kube: kube}
	fs := cmd.Flags()
	fs.StringSliceVar(&s.files, "from", nil, "read saved objects instead of a cluster: files or folders of YAML or JSON, such as one of `kubectl gpu gather`")
	fs.IntVar(&s.nodes, "nodes", 1, "how many nodes of --preset the cluster has")
	fs.StringVar(&s.driver, "driver-name", defaultDriver, "name of the DRA driver; empty for the devices of all drivers")
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
		return nil, errors.New("--mig-devices, --slice-vocabulary and --list-attributes say what nodes of --preset offer: add --preset, or leave them out")
	case len(s.files) > 0:
		return state.FromFiles(s.files...)
	case s.preset.name != "":
		if err := atMost("nodes", s.nodes); err != nil {
			return nil, err
		}
		machine, settings, err := s.preset.machine(s.driverName())
		if err != nil {
			return nil, err
		}
		return machine.State(s.nodes, settings), nil
	}
	client, err := client(s.kube)
	if err != nil {
		return nil, err
	}
	found, err := state.FromCluster(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("%w (--from and --preset work without a cluster)", err)
	}
	return found, nil
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

// presetFlags choose a recorded machine and how its driver is set up.
type presetFlags struct {
	name, mig, vocabulary string
	lists                 bool
}

// The values of --mig-devices, as of the plugin's flag of that name.
const (
	migNone     = "none"
	migOnDemand = "on-demand"
)

func (p *presetFlags) addTo(cmd *cobra.Command, usage string) {
	fs := cmd.Flags()
	fs.StringVar(&p.name, "preset", "", usage)
	fs.StringVar(&p.mig, "mig-devices", migNone, "partitions that nodes of --preset offer: "+migNone+" or "+migOnDemand)
	fs.StringVar(&p.vocabulary, "slice-vocabulary", string(device.VocabularyFull), "what nodes of --preset publish of a device: full or minimal")
	fs.BoolVar(&p.lists, "list-attributes", false, "nodes of --preset publish list attributes")
	complete := func(name string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("preset", preset.Names()...)
	complete("mig-devices", migNone, migOnDemand)
	complete("slice-vocabulary", string(device.VocabularyFull), string(device.VocabularyMinimal))
}

// tuned tells whether some setting is not the default.
func (p *presetFlags) tuned() bool {
	return p.mig != migNone || p.vocabulary != string(device.VocabularyFull) || p.lists
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

func (p *presetFlags) machine(driver string) (preset.Machine, preset.Settings, error) {
	if err := errors.Join(choice("mig-devices", p.mig, migNone, migOnDemand),
		choice("slice-vocabulary", p.vocabulary, string(device.VocabularyFull), string(device.VocabularyMinimal))); err != nil {
		return preset.Machine{}, preset.Settings{}, err
	}
	machine, err := preset.Get(p.name)
	settings := preset.Settings{DriverName: driver, Settings: offer.Settings{
		Vocabulary: device.Vocabulary(p.vocabulary), Lists: p.lists, Partitions: p.mig == migOnDemand,
	}}
	return machine, settings, err
}
