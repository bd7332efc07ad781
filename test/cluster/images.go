package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/gpu-dra/driver/test/cluster/internal/host"
)

// Images that every node has.
const (
	// PauseImage keeps a pod's namespaces.
	PauseImage = "localhost/pause:1"
	// BusyboxImage has a shell and the usual tools, all in one static program.
	BusyboxImage = "localhost/busybox:1"
	// WorkloadImage has the same tools and glibc, for programs and libraries that a container
	// gets from its node.
	WorkloadImage = "localhost/workload:1"
)

// Load imports image archives into every node and keeps them for nodes to come.
func (c *Cluster) Load(ctx context.Context, archives ...string) error {
	return c.locked(ctx, func() error {
		if err := os.MkdirAll(c.path("images"), 0o755); err != nil {
			return fmt.Errorf("load image: %w", err)
		}
		for _, archive := range archives {
			if err := keep(archive, c.path("images", filepath.Base(archive))); err != nil {
				return err
			}
		}
		for i := range maxNodes {
			if _, running, err := c.super.Find(containerdName(i)); err != nil {
				return err
			} else if !running {
				continue
			}
			if err := c.say.Step("images on "+NodeName(i), func(func(string)) error { return c.importImages(ctx, i) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// keep copies an archive into the state folder; the copy appears whole.
func keep(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := renameio.NewPendingFile(to)
	if err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	defer func() { err = errors.Join(err, out.Cleanup()) }()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	if err := out.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	return nil
}

// importImages imports what the node lacks. A mark named by the archive's checksum says what
// it has, so that a rebuilt image is imported again.
func (c *Cluster) importImages(ctx context.Context, i int) error {
	var archives []string
	for _, dir := range []string{filepath.Join(c.config.Bin, "images"), c.path("images")} {
		found, err := filepath.Glob(filepath.Join(dir, "*.tar"))
		if err != nil {
			return fmt.Errorf("images: %w", err)
		}
		archives = append(archives, found...)
	}
	if err := os.MkdirAll(c.nodePath(i, "imported"), 0o755); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	for _, archive := range archives {
		sum, err := checksum(archive)
		if err != nil {
			return err
		}
		// One mark per archive: when its content comes back, it is imported again.
		mark := c.nodePath(i, "imported", filepath.Base(archive))
		if have, err := os.ReadFile(mark); err == nil && string(have) == sum {
			continue
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("images: %w", err)
		}
		if _, err := host.Exec(ctx, filepath.Join(c.config.Bin, "ctr"), "-a", c.containerdSocket(i), "-n", "k8s.io", "images", "import", "--local", archive); err != nil {
			return fmt.Errorf("import image: %w", err)
		}
		if err := os.WriteFile(mark, []byte(sum), 0o644); err != nil {
			return fmt.Errorf("images: %w", err)
		}
	}
	return nil
}

func checksum(file string) (sum string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("checksum: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("checksum of %s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
