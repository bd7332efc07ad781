package cdi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	suffix = ".json"
	// staleTemp is the age from which a temporary file cannot belong to a write in progress.
	staleTemp = 5 * time.Minute
)

// Dir is a directory of CDI specs that the container runtime reads. Files of other vendors lie
// in it too and are never touched: ours begin with the driver's name and the class.
type Dir struct {
	path   string
	vendor string
	host   *Host
}

// Open makes the directory where it is missing. driverName is the vendor of our specs.
func Open(path, driverName string, host *Host) (*Dir, error) {
	if err := parser.ValidateVendorName(driverName); err != nil {
		return nil, fmt.Errorf("driver name %q as CDI vendor: %w", driverName, err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("make the CDI directory: %w", err)
	}
	d := &Dir{path: path, vendor: driverName, host: host}
	return d, d.sweep(time.Now().Add(-staleTemp))
}

// BaseID is the qualified name of the device with the common edits.
func (d *Dir) BaseID() string { return parser.QualifiedName(d.vendor, classDriver, baseDevice) }

// ClaimID is the qualified name of a device of a claim's spec.
func (d *Dir) ClaimID(deviceName string) string {
	return parser.QualifiedName(d.vendor, classClaim, deviceName)
}

// EnsureClaim writes the claim's spec unless the file has exactly the content that it must have
// now. Nodes are looked up on the host each time, so a spec from before a reboot or a reload of
// the kernel module is replaced. Errors: *NodeError, or of the file system.
func (d *Dir) EnsureClaim(ctx context.Context, claim types.UID, devices []Device) (written bool, err error) {
	data, err := d.renderClaim(ctx, devices)
	if err != nil {
		return false, err
	}
	path, err := d.claimPath(claim)
	if err != nil {
		return false, err
	}
	return d.ensure(path, data)
}

// CheckClaim fails as EnsureClaim would for what is missing on the host, and writes nothing.
func (d *Dir) CheckClaim(ctx context.Context, devices []Device) error {
	_, err := d.renderClaim(ctx, devices)
	return err
}

func (d *Dir) renderClaim(ctx context.Context, devices []Device) ([]byte, error) {
	majors, err := d.host.majors(ctx)
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{Kind: d.vendor + "/" + classClaim}
	for _, dev := range devices {
		nodes, err := d.host.resolve(dev.Edits.Nodes, majors)
		if err != nil {
			return nil, err
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: dev.Name, ContainerEdits: specs.ContainerEdits{
			Env: dev.Edits.Env, DeviceNodes: nodes, Mounts: dev.Edits.Mounts, Hooks: dev.Edits.Hooks,
		}})
	}
	return render(spec)
}

// RemoveClaim removes the claim's spec; that there is none is no error.
func (d *Dir) RemoveClaim(claim types.UID) error {
	path, err := d.claimPath(claim)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CDI spec: %w", err)
	}
	return nil
}

// Claims lists the claims that have a spec of ours, sorted.
func (d *Dir) Claims() ([]types.UID, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list the CDI directory: %w", err)
	}
	var uids []types.UID
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), d.claimPrefix())
		uid, spec := strings.CutSuffix(rest, suffix)
		if ours && spec && e.Type().IsRegular() && parser.ValidateDeviceName(uid) == nil {
			uids = append(uids, types.UID(uid))
		}
	}
	slices.Sort(uids)
	return uids, nil
}

func (d *Dir) claimPrefix() string { return d.vendor + "-" + classClaim + "_" }

// claimPath follows the library's name for transient specs, "<vendor>-<class>_<id>".
func (d *Dir) claimPath(claim types.UID) (string, error) {
	// What a device name may hold is safe in a file name: letters, digits, "_-.:" within.
	if err := parser.ValidateDeviceName(string(claim)); err != nil {
		return "", fmt.Errorf("claim UID %q in a CDI name: %w", claim, err)
	}
	return filepath.Join(d.path, d.claimPrefix()+string(claim)+suffix), nil
}

func (d *Dir) basePath() string {
	return filepath.Join(d.path, d.vendor+"-"+classDriver+suffix)
}

// ensure makes the file have the content. Nothing is synced: the directory is a tmpfs on real
// nodes, and after a loss of power every spec is made anew from the journal and the hardware.
func (d *Dir) ensure(path string, data []byte) (written bool, err error) {
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, data) {
		return false, nil
	}
	if err := d.write(path, data); err != nil {
		return false, fmt.Errorf("write CDI spec %s: %w", path, err)
	}
	return true, nil
}

// write replaces a file at once. The temporary name has no suffix of a spec, so that no runtime
// reads half of one, and the mode is right before the name is: runtimes need not be root.
func (d *Dir) write(path string, data []byte) error {
	f, err := os.CreateTemp(d.path, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// sweep removes temporary files of ours that a killed process left. One that cannot be removed
// is litter, not a reason to refuse the start.
func (d *Dir) sweep(before time.Time) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("list the CDI directory: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "."+d.vendor+"-") || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(d.path, e.Name()))
		}
	}
	return nil
}
