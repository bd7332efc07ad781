package nvml_test

import (
	"errors"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/gpusim/simstate"
)

// change edits the shared state of a node, for what gpusim has no action for.
func change(n *gpusim.Node, edit func(*simstate.Node)) error {
	file, err := simstate.Open(n.StateFile())
	if err != nil {
		return err
	}
	return errors.Join(file.Update(func(s *simstate.Node) error { edit(s); return nil }), file.Close())
}

// setLinkVersion sets what nvmlDeviceGetNvLinkVersion answers, an nvmlNvlinkVersion_t.
func setLinkVersion(n *gpusim.Node, version int) error {
	return change(n, func(s *simstate.Node) {
		for i := range s.GPUCount {
			s.GPUs[i].LinkVersion = uint32(version)
		}
	})
}
