package command

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory/selection"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/chartvalues"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/preset"
	"github.com/gpu-dra/driver/pkg/mig/layout"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/sharing/deviceplugin"
	"github.com/gpu-dra/driver/pkg/sharing/shares"
)

// The flags of presetFlags that say how the driver of the nodes is set up.
const (
	flagValues     = "values"
	flagMIG        = "mig-devices"
	flagVocabulary = "slice-vocabulary"
	flagLists      = "list-attributes"
	flagLayoutFile = "mig-layout-file"
	flagLayout     = "mig-layout"
	flagRelease    = "kubernetes-version"
)

// tuning are those flags.
func tuning() []string {
	return []string{flagValues, flagMIG, flagVocabulary, flagLists, flagLayoutFile, flagLayout, flagRelease}
}

// presetFlags choose a recorded machine and how its driver is set up.
type presetFlags struct {
	cmd        *cobra.Command
	name       string
	values     []string
	mig        string
	vocabulary string
	lists      bool
	layoutFile string
	layout     string
	release    string
}

func (p *presetFlags) addTo(cmd *cobra.Command, usage string) {
	p.cmd = cmd
	defaults := config.Default()
	fs := cmd.Flags()
	fs.StringVar(&p.name, "preset", "", usage)
	fs.StringArrayVar(&p.values, flagValues, nil, "nodes of --preset are set up by this file of values for the Helm chart; may be given several times")
	fs.StringVar(&p.mig, flagMIG, defaults.MIGDevices, "partitions that nodes of --preset offer: "+strings.Join(migDevices(), ", "))
	fs.StringVar(&p.vocabulary, flagVocabulary, defaults.SliceVocabulary, "what nodes of --preset publish of a device: "+strings.Join(vocabularies(), " or "))
	fs.BoolVar(&p.lists, flagLists, defaults.ListAttributes, "nodes of --preset publish list attributes")
	fs.StringVar(&p.layoutFile, flagLayoutFile, "", "nodes of --preset are laid out by this file of MIG layouts, in mig-parted's format")
	fs.StringVar(&p.layout, flagLayout, "", "configuration of --"+flagLayoutFile+" for the nodes of --preset, as their label nvidia.com/mig.config names it")
	fs.StringVar(&p.release, flagRelease, "", "nodes of --preset are in a cluster of this release, 1.34 or later; the newest when empty")
	complete := func(name string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("preset", preset.Names()...)
	complete(flagMIG, migDevices()...)
	complete(flagVocabulary, vocabularies()...)
	for _, name := range []string{flagValues, flagLayoutFile} {
		_ = cmd.MarkFlagFilename(name, "yaml", "yml", "json")
	}
}

func migDevices() []string { return []string{config.MIGNone, config.MIGStatic, config.MIGOnDemand} }

func vocabularies() []string {
	return []string{string(device.VocabularyFull), string(device.VocabularyMinimal)}
}

// tuned tells whether some setting was given.
func (p *presetFlags) tuned() bool {
	return slices.ContainsFunc(tuning(), p.cmd.Flags().Changed)
}

// machine finds the recorded machine and its settings. driver is the name of the driver; empty is
// that of the values, or the default.
func (p *presetFlags) machine(driver string) (preset.Machine, preset.Settings, error) {
	machine, err := preset.Get(p.name)
	if err != nil {
		return preset.Machine{}, preset.Settings{}, err
	}
	settings, err := p.settings(driver)
	return machine, settings, err
}

// config is how the driver is set up: by flags, then by values, then by default.
func (p *presetFlags) config(driver string) (*config.Config, error) {
	c := config.Default()
	values, err := chartvalues.Read(p.values...)
	if err != nil {
		return nil, err
	}
	if err := values.Apply(c); err != nil {
		return nil, err
	}
	if name := values.MIGLayouts.ConfigMap; name != "" && p.layoutFile == "" {
		return nil, fmt.Errorf("--%s: migLayouts.configMap is %q, a ConfigMap of the cluster: give the file that is in it with --%s", flagValues, name, flagLayoutFile)
	}
	changed := p.cmd.Flags().Changed
	given(&c.DriverName, driver, driver != "")
	given(&c.MIGDevices, p.mig, changed(flagMIG))
	given(&c.SliceVocabulary, p.vocabulary, changed(flagVocabulary))
	given(&c.ListAttributes, p.lists, changed(flagLists))
	given(&c.MIGLayout, p.layout, changed(flagLayout))
	if p.layoutFile != "" {
		// The path is the plugin's own, whose file is read here.
		c.MIGLayoutFile = "/" + p.layoutFile
	}
	c.NodeName = "node"
	return c, c.Validate()
}

func given[T any](to *T, value T, is bool) {
	if is {
		*to = value
	}
}

func (p *presetFlags) settings(driver string) (preset.Settings, error) {
	c, err := p.config(driver)
	if err != nil {
		return preset.Settings{}, err
	}
	out := preset.Settings{DriverName: c.DriverName, Layout: c.MIGLayout, Settings: offer.Settings{
		Vocabulary: device.Vocabulary(c.SliceVocabulary), Lists: c.ListAttributes,
		Partitions: c.MIGDevices != config.MIGNone, NotOnDemand: c.MIGDevices == config.MIGStatic, HideForeign: !c.MIGForeign,
	}}
	// These were checked above.
	out.Include, _ = selection.Parse(c.IncludeGPUs)
	out.Exclude, _ = selection.Parse(c.ExcludeGPUs)
	out.Shares, _ = shares.Parse(c.SharedDevices)
	plugged, _ := deviceplugin.Parse(c.DevicePluginConfig)
	out.Shares = append(out.Shares, plugged.Declarations...)
	if p.layoutFile != "" {
		if out.Layouts, err = layouts(p.layoutFile); err != nil {
			return preset.Settings{}, err
		}
	}
	out.Release, err = p.known()
	return out, err
}

func layouts(path string) (layout.File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return layout.File{}, fmt.Errorf("--%s: %w", flagLayoutFile, err)
	}
	file, err := layout.Parse(data)
	if err != nil {
		return layout.File{}, fmt.Errorf("--%s %s: %w", flagLayoutFile, path, err)
	}
	return file, nil
}

// errRelease says which releases there are.
var errRelease = errors.New("use 1.34 or a later release, such as 1.36")

// known is the cluster's release; nil for the newest.
func (p *presetFlags) known() (*version.Version, error) {
	if p.release == "" {
		return nil, nil
	}
	release, err := version.ParseGeneric(p.release)
	if err != nil || release.LessThan(version.MajorMinor(1, 34)) {
		return nil, fmt.Errorf("--%s %q: %w", flagRelease, p.release, errRelease)
	}
	return release, nil
}
