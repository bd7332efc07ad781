package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
)

// Severity is how bad a fault is. The order is that of the constants.
type Severity int

// The severities.
const (
	// Ignore: not a fault.
	Ignore Severity = iota
	// Note: worth knowing. The device serves on.
	Note
	// Avoid: no new work may come here.
	Avoid
	// Evict: what runs here is lost, too.
	Evict
)

func severityNames() []string { return []string{"ignore", "note", "avoid", "evict"} }

func (s Severity) String() string {
	if names := severityNames(); s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("severity %d", int(s))
}

// MarshalText implements encoding.TextMarshaler.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Severity) UnmarshalText(text []byte) error {
	i := slices.Index(severityNames(), string(text))
	if i < 0 {
		return fmt.Errorf("severity %q: use one of %s", text, strings.Join(severityNames(), ", "))
	}
	*s = Severity(i)
	return nil
}

// Kind is what a fault is of. Each has a taint of its own.
type Kind string

// The kinds.
const (
	// XID: the driver reported an error; the code is its number.
	XID Kind = "xid"
	// Lost: the GPU answers no more.
	Lost Kind = "gpu-lost"
	// Unresponsive: calls about the GPU do not return.
	Unresponsive Kind = "unresponsive"
	// Unmonitored: the GPU serves, and nobody would notice if it fell ill.
	Unmonitored Kind = "unmonitored"
	// Recovery: the driver asks for the action that is the code.
	Recovery Kind = "recovery-action"
	// Memory: rows or pages of the memory are, or have to be, replaced.
	Memory Kind = "memory"
	// NVLink: links are down that were up at full health, or have many errors.
	NVLink Kind = "nvlink"
	// Fabric: the registration with the NVLink fabric is not complete and well.
	Fabric Kind = "fabric"
)

// Kinds lists all kinds.
func Kinds() []Kind {
	return []Kind{XID, Lost, Unresponsive, Unmonitored, Recovery, Memory, NVLink, Fabric}
}

// Until says what ends a fault, besides the hold-down.
type Until string

// The ends.
const (
	// Quiet: that it does not come again.
	Quiet Until = "quiet"
	// Recovered: that the driver says that no recovery is needed. Where it cannot say, a reset.
	Recovered Until = "recovered"
)

// Place is a GPU instance by what it is, not by its number: that is used again.
type Place struct {
	Profile int `json:"profile"`
	Start   int `json:"start"`
	Size    int `json:"size"`
}

// PlaceOf is where an instance is.
func PlaceOf(i inventory.MIGInstance) Place {
	return Place{Profile: i.ProfileID, Start: i.Placement.Start, Size: i.Placement.Size}
}

// Compare orders places.
func (p Place) Compare(q Place) int {
	return cmp.Or(cmp.Compare(p.Start, q.Start), cmp.Compare(p.Size, q.Size), cmp.Compare(p.Profile, q.Profile))
}

// Fault is one thing that is wrong with a GPU.
type Fault struct {
	Kind Kind `json:"kind"`
	// Code tells faults of a kind apart: "79", "reset", "remap-failed".
	Code string `json:"code,omitzero"`
	// Place is the GPU instance that has it; nil for the whole GPU.
	Place    *Place   `json:"place,omitzero"`
	Severity Severity `json:"severity"`
	Until    Until    `json:"until"`
	// Means says what it is, Do what to do about it, Detail what was seen.
	Means  string `json:"means,omitzero"`
	Do     string `json:"do,omitzero"`
	Detail string `json:"detail,omitzero"`
	// First and Last are when it was seen, Count how often.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count int       `json:"count"`
	// Level tells that it is a state of the GPU, and On that it was so at the last look.
	Level bool `json:"level,omitzero"`
	On    bool `json:"on,omitzero"`
	// Again is how often it came back soon after it was over; it lengthens the hold-down.
	Again int `json:"again,omitzero"`
	// Old tells that it is of an earlier boot, and not confirmed in this one.
	Old bool `json:"old,omitzero"`
}

// String names the fault for people: "XID 79".
func (f Fault) String() string {
	switch f.Kind {
	case XID:
		return "XID " + f.Code
	case Recovery:
		return "recovery action " + f.Code
	case Lost, Unresponsive, Unmonitored:
		return string(f.Kind)
	}
	return string(f.Kind) + " " + f.Code
}

// key tells faults apart.
type key struct {
	kind  Kind
	code  string
	whole bool
	place Place
}

func keyOf(kind Kind, code string, place *Place) key {
	if place == nil {
		return key{kind: kind, code: code, whole: true}
	}
	return key{kind: kind, code: code, place: *place}
}

func (f Fault) key() key { return keyOf(f.Kind, f.Code, f.Place) }

// compare orders faults: the gravest first, then the oldest. It is total, so that the order in
// which faults were noticed shows nowhere.
func (f Fault) compare(g Fault) int {
	place := func(p *Place) Place {
		if p == nil {
			return Place{Start: -1}
		}
		return *p
	}
	return cmp.Or(
		cmp.Compare(g.Severity, f.Severity), f.First.Compare(g.First), cmp.Compare(f.Kind, g.Kind),
		cmp.Compare(len(f.Code), len(g.Code)), cmp.Compare(f.Code, g.Code), place(f.Place).Compare(place(g.Place)),
	)
}
