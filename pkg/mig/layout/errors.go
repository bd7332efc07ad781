package layout

import (
	"fmt"
	"strings"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

// ProfileError tells that a GPU has no profile of a declared name.
type ProfileError struct {
	Config, Profile string
	GPU             pci.Address
	Product         string
	// Has are the GPU's profiles, each with the number of its instances.
	Has []string
}

func (e *ProfileError) Error() string {
	return fmt.Sprintf("MIG layout %q: GPU %s (%s) has no profile %s: it has %s", e.Config, e.GPU, e.Product, e.Profile, list(e.Has))
}

func list(profiles []string) string {
	if len(profiles) == 0 {
		return "none, since it cannot be partitioned"
	}
	return strings.Join(profiles, ", ")
}

// FitError tells that what is declared for a GPU does not fit on it.
type FitError struct {
	Config, Wanted string
	GPU            pci.Address
	Product        string
	// Profile is the first that does not fit beside the larger ones, Fits how many of it do.
	Profile string
	Fits    int
	// Has are the GPU's profiles, each with the number of its instances.
	Has []string
}

func (e *FitError) Error() string {
	return fmt.Sprintf("MIG layout %q: GPU %s (%s) has no room for %s: %d x %s fit beside the larger ones. Alone, %s fit",
		e.Config, e.GPU, e.Product, e.Wanted, e.Fits, e.Profile, list(e.Has))
}

// ForeignError tells that instances which this driver did not make are in the way of a layout.
type ForeignError struct {
	Config, Wanted string
	GPU            pci.Address
	By             []inventory.MIGInstance
}

func (e *ForeignError) Error() string {
	var places []string
	for _, i := range e.By {
		places = append(places, fmt.Sprintf("instance %d at %s", i.ID, i.Placement))
	}
	return fmt.Sprintf("MIG layout %q: on GPU %s is what another tool made (%s), which leaves no room for %s: "+
		"remove it (nvidia-smi mig -dci, -dgi), or declare it", e.Config, e.GPU, strings.Join(places, ", "), e.Wanted)
}

// ModeError tells that a GPU's MIG mode can only be switched with a reset.
type ModeError struct {
	Config  string
	GPU     pci.Address
	Product string
	// Wanted is the mode that is declared.
	Wanted bool
}

func (e *ModeError) Error() string {
	flag, text := 0, "off"
	if e.Wanted {
		flag, text = 1, "on"
	}
	return fmt.Sprintf("MIG layout %q: the MIG mode of GPU %s (%s) has to be switched %s with a reset, which this driver does not do: "+
		"drain the node and run nvidia-smi -i %s -mig %d, with a reset of the GPU or a reboot", e.Config, e.GPU, e.Product, text, e.GPU, flag)
}
