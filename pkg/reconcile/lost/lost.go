// Package lost finds who owns devices when a claim's record is gone and nothing else knows of it: from
// the names in the CDI specs, which a record outlives. It is for the agent, before the plugin serves. It
// must not ask the API server, nor know how a record is entered.
package lost

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
)

// Spec is what the CDI directory knows of one claim.
type Spec struct {
	Claim types.UID
	// Namespace and Name are empty where the claim has no metadata, whose spec has them.
	Namespace, Name string
	// Devices are the names in the claim's spec, as cdi.DeviceName makes them.
	Devices []string
}

// file is what is read of a CDI spec.
type file struct {
	Devices []struct {
		Name           string `json:"name"`
		ContainerEdits struct {
			Mounts []struct {
				HostPath string `json:"hostPath"`
			} `json:"mounts"`
		} `json:"containerEdits"`
	} `json:"devices"`
}

// Read looks for specs of claims that known has not. Files that cannot be read are in the error, and
// the others are there.
func Read(dir, driver string, known func(types.UID) bool) ([]Spec, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the CDI directory: %w", err)
	}
	var specs []Spec
	var errs []error
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), driver+"-claim_")
		name, isSpec := strings.CutSuffix(rest, ".json")
		uid := types.UID(name)
		if !ours || !isSpec || !e.Type().IsRegular() || journal.CheckUID(uid) != nil || known(uid) {
			continue
		}
		f, err := read(filepath.Join(dir, e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		spec := Spec{Claim: uid}
		for _, d := range f.Devices {
			spec.Devices = append(spec.Devices, d.Name)
		}
		spec.Namespace, spec.Name = claimName(dir, driver, uid)
		specs = append(specs, spec)
	}
	return specs, errors.Join(errs...)
}

func read(path string) (f file, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return f, fmt.Errorf("CDI spec %s: %w", path, err)
	}
	return f, nil
}

// claimName finds the claim's name in the specs that mount its metadata, which the DRA library
// keeps in <data>/<...>/<namespace>_<name>/<request>/metadata.json.
func claimName(dir, driver string, uid types.UID) (namespace, name string) {
	paths, _ := filepath.Glob(filepath.Join(dir, driver+"_metadata_"+string(uid)+"_*.json"))
	for _, path := range paths {
		f, err := read(path)
		if err != nil {
			continue
		}
		for _, d := range f.Devices {
			for _, m := range d.ContainerEdits.Mounts {
				// Neither part has an underscore.
				if parts := strings.Split(filepath.Base(filepath.Dir(filepath.Dir(m.HostPath))), "_"); len(parts) == 2 {
					return parts[0], parts[1]
				}
			}
		}
	}
	return "", ""
}

// Record makes a record of what the claim owns: without steps, since what they did is not known.
// devices are those that the node has now; one that is not among them is known by its name, as all
// of its GPU. When the claim was prepared is not known and left out: its programs may have begun long ago.
func (s Spec) Record(pool, bootID string, devices map[string]device.Device) (*journal.Record, error) {
	r := &journal.Record{
		Namespace: s.Namespace, Name: s.Name, UID: s.Claim,
		State: journal.StateStarted, BootID: bootID,
	}
	for _, name := range s.Devices {
		parts := strings.Split(name, "_")
		if len(parts) < 3 || len(parts) > 4 || parts[0] != string(s.Claim) {
			return nil, fmt.Errorf("CDI device %q of claim %s is not of the form UID_request_device", name, s.Claim)
		}
		d := journal.Device{Request: strings.ReplaceAll(parts[1], ".", "/"), Pool: pool, Name: parts[2]}
		if len(parts) == 4 {
			share := types.UID(parts[3])
			d.ShareID = &share
		}
		if err := identify(&d, devices); err != nil {
			return nil, fmt.Errorf("claim %s: %w", s.Claim, err)
		}
		r.Devices = append(r.Devices, d)
	}
	if len(r.Devices) == 0 {
		return nil, fmt.Errorf("the CDI spec of claim %s names no device", s.Claim)
	}
	return r, nil
}

// identify fills in which hardware the device is.
func identify(d *journal.Device, devices map[string]device.Device) error {
	if known, ok := devices[d.Name]; ok {
		id := known.Identity()
		d.Kind, d.PCI, d.GPUUUID, d.Partition = string(known.Kind()), id.PCI, id.GPUUUID, id.Partition
		return nil
	}
	fields := strings.SplitN(strings.TrimPrefix(d.Name, "gpu-"), "-", 5)
	if !strings.HasPrefix(d.Name, "gpu-") || len(fields) < 4 {
		return fmt.Errorf("device %q is not on this node and its name has no address", d.Name)
	}
	at, err := pci.Parse(strings.Join(fields[:3], ":") + "." + fields[3])
	if err != nil {
		return fmt.Errorf("device %q is not on this node: %w", d.Name, err)
	}
	d.PCI, d.Kind = at, string(device.KindGPU)
	if len(fields) == 5 {
		d.Kind = string(device.KindMIG)
	}
	return nil
}
