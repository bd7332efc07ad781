// Package preset knows nodes that people buy, as the plugin would see them, so that the command
// line can answer without a cluster: what such a node publishes, what a claim would get on it. The
// machines are recorded by the plugin's own scan and embedded; nothing here reads hardware.
package preset

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/offer"
)

//go:embed machines/*.json
var machines embed.FS

const folder = "machines"

// Names are the presets, sorted.
func Names() []string {
	var names []string
	// The embedded folder is there: the compiler saw it.
	entries, _ := fs.ReadDir(machines, folder)
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".json"))
	}
	slices.Sort(names)
	return names
}

// Machine is one recorded node.
type Machine struct {
	// Description says what the machine is.
	Description string
	Snapshot    inventory.Snapshot
}

// Get finds a preset by name.
func Get(name string) (Machine, error) {
	if !slices.Contains(Names(), name) {
		return Machine{}, fmt.Errorf("--preset %q is none of %s", name, strings.Join(Names(), ", "))
	}
	data, err := machines.ReadFile(path.Join(folder, name+".json"))
	if err != nil {
		return Machine{}, err
	}
	return Decode(data)
}

// recorded is a machine in a file. What many GPUs have in common is there once: tables of profiles
// and links, and for each GPU its place in them.
type recorded struct {
	Description string
	Driver      inventory.Driver
	GPUs        []inventory.GPU
	Profiles    [][]inventory.MIGProfile
	ProfilesOf  []int
	Links       [][]inventory.Link
	LinksOf     []int
}

// Encode renders a machine, one GPU a line; equal machines give equal bytes.
func Encode(m Machine) ([]byte, error) {
	r := recorded{Description: m.Description, Driver: m.Snapshot.Driver, GPUs: slices.Clone(m.Snapshot.GPUs)}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		r.ProfilesOf = append(r.ProfilesOf, intern(&r.Profiles, g.MIG.Profiles))
		r.LinksOf = append(r.LinksOf, intern(&r.Links, g.NVLink.Links))
		g.MIG.Profiles, g.NVLink.Links = nil, nil
	}
	return json.MarshalIndent(r, "", " ")
}

// intern finds rows in a table and adds them where they are not there yet.
func intern[T any](table *[][]T, rows []T) int {
	key := func(rows []T) string { return fmt.Sprintf("%+v", rows) }
	at := slices.IndexFunc(*table, func(have []T) bool { return key(have) == key(rows) })
	if at >= 0 {
		return at
	}
	*table = append(*table, rows)
	return len(*table) - 1
}

// Decode is the inverse of Encode.
func Decode(data []byte) (Machine, error) {
	var r recorded
	if err := json.Unmarshal(data, &r); err != nil {
		return Machine{}, fmt.Errorf("recorded machine: %w", err)
	}
	if len(r.ProfilesOf) != len(r.GPUs) || len(r.LinksOf) != len(r.GPUs) {
		return Machine{}, fmt.Errorf("recorded machine: %d GPUs, but %d have profiles and %d links", len(r.GPUs), len(r.ProfilesOf), len(r.LinksOf))
	}
	for i := range r.GPUs {
		profiles, links := r.ProfilesOf[i], r.LinksOf[i]
		if profiles < 0 || profiles >= len(r.Profiles) || links < 0 || links >= len(r.Links) {
			return Machine{}, fmt.Errorf("recorded machine: GPU %d refers to profiles %d and links %d, which are not there", i, profiles, links)
		}
		r.GPUs[i].MIG.Profiles, r.GPUs[i].NVLink.Links = r.Profiles[profiles], r.Links[links]
	}
	return Machine{Description: r.Description, Snapshot: inventory.Snapshot{Driver: r.Driver, GPUs: r.GPUs}}, nil
}

// Objects gives the API objects of what a node offers.
func Objects(node, driver string, made offer.Offer) []*resourceapi.ResourceSlice {
	pool := made.Resources.Pools[node].Slices
	out := make([]*resourceapi.ResourceSlice, len(pool))
	for i, slice := range pool {
		out[i] = &resourceapi.ResourceSlice{
			TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, driver, node)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &node, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool))},
			},
		}
	}
	return out
}
