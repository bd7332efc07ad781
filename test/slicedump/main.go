// Command slicedump writes what the driver publishes on simulated machines to a cluster of a
// release: one JSON object a line, with the machine's name and an API object. It is for tests that
// hold slices against a release whose libraries do not fit into one build with this module.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/mig/migtest"
	"github.com/gpu-dra/driver/pkg/offer"
	"github.com/gpu-dra/driver/pkg/slices"
	"github.com/gpu-dra/driver/pkg/slices/slicestest"
	"github.com/gpu-dra/driver/pkg/topology"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "slicedump:", err)
		os.Exit(1)
	}
}

// Line is one line of the output.
type Line struct {
	Machine string                     `json:"machine"`
	Slice   *resourceapi.ResourceSlice `json:"slice"`
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("%q: one argument is needed, a Kubernetes release such as 1.34", args)
	}
	release, err := version.ParseGeneric(args[0])
	if err != nil {
		return fmt.Errorf("release %q: %w", args[0], err)
	}
	taint := []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoExecute}}
	conditions := offer.Conditions{
		Layout: slices.LayoutFor(release),
		Taints: []offer.Tainter{func(device.Device) []resourceapi.DeviceTaint { return taint }},
	}
	encoder := json.NewEncoder(out)
	for _, preset := range migtest.Presets() {
		for _, vocabulary := range []device.Vocabulary{device.VocabularyFull, device.VocabularyMinimal} {
			for _, mode := range []bool{false, true} {
				s, err := machine(preset, mode)
				if err != nil {
					return err
				}
				a, _ := topology.Resolve(s, topology.Memory{})
				made := offer.Settings{Pool: slicestest.Node, Vocabulary: vocabulary, Partitions: true}.Make(s, a, conditions)
				if len(made.Omissions) > 0 {
					return fmt.Errorf("%s: not published: %+v", preset, made.Omissions)
				}
				for _, object := range slicestest.Objects(made.Resources.Pools[slicestest.Node].Slices) {
					line := Line{Machine: fmt.Sprintf("%s, %s, MIG mode on: %t", preset, vocabulary, mode), Slice: object}
					if err := encoder.Encode(line); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// machine is a preset whose GPUs are in MIG mode or not.
func machine(preset string, mode bool) (inventory.Snapshot, error) {
	s, err := migtest.Load(preset)
	for i := range s.GPUs {
		s.GPUs[i].MIG.Enabled = mode && s.GPUs[i].MIG.Capable
	}
	return s, err
}
