// Package build makes an image from its description: it fetches the packages, reads the
// files, and hands both to assemble. It is what cmd/imagebuild runs.
package build

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/gpu-dra/driver/deployments/container/internal/assemble"
	"github.com/gpu-dra/driver/deployments/container/internal/debian"
	"github.com/gpu-dra/driver/deployments/container/internal/spec"
)

// PackagesLabel is the label that lists the Debian packages as "name=version", by commas.
const PackagesLabel = "org.debian.packages"

// ErrArchitecture is wrapped when a given program is for another machine than the image.
var ErrArchitecture = errors.New("program is for another architecture")

// Packages is where the packages of an image come from.
type Packages interface {
	Fetch(ctx context.Context, names []string) ([]debian.Package, error)
	Control(ctx context.Context, p debian.Package) ([]byte, error)
	Files(ctx context.Context, p debian.Package) (io.Reader, error)
}

// Image builds the described image for one architecture (Go's name). All its times are the
// given one. Packages and given files make a layer each, so that a new build of a program
// leaves the first layer as it was.
func Image(ctx context.Context, description *spec.Image, from Packages, architecture string, created time.Time) (v1.Image, error) {
	base, versions, err := packageLayer(ctx, description, from)
	if err != nil {
		return nil, err
	}
	files, err := fileLayer(description, architecture)
	if err != nil {
		return nil, err
	}
	c := description.Config
	labels := maps.Clone(c.Labels)
	if len(versions) > 0 {
		if labels == nil {
			labels = map[string]string{}
		}
		labels[PackagesLabel] = strings.Join(versions, ",")
	}
	return assemble.Image([]assemble.Layer{
		{Tree: base, Comment: "Debian packages: " + strings.Join(versions, " ")},
		{Tree: files, Comment: "files of " + description.Name},
	}, assemble.Settings{
		Architecture: architecture, Created: created, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		User: c.User, WorkingDir: c.WorkingDir, Env: c.Env, Labels: labels,
	})
}

// packageLayer unpacks the packages. The control fields go to /var/lib/dpkg/status.d, where
// scanners look for the packages of an image without dpkg.
func packageLayer(ctx context.Context, description *spec.Image, from Packages) (*assemble.Tree, []string, error) {
	tree := assemble.NewTree()
	packages, err := from.Fetch(ctx, description.Packages)
	if err != nil {
		return nil, nil, fmt.Errorf("packages of %s: %w", description.Name, err)
	}
	var versions []string
	for _, p := range packages {
		content, err := from.Files(ctx, p)
		if err != nil {
			return nil, nil, fmt.Errorf("package %s: %w", p.Name, err)
		}
		if err := tree.AddTar(content, description.Excluded); err != nil {
			return nil, nil, fmt.Errorf("package %s: %w", p.Name, err)
		}
		control, err := from.Control(ctx, p)
		if err != nil {
			return nil, nil, fmt.Errorf("package %s: %w", p.Name, err)
		}
		if err := tree.AddFile(path.Join("/var/lib/dpkg/status.d", p.Name), 0o644, control); err != nil {
			return nil, nil, err
		}
		versions = append(versions, p.Name+"="+p.Version)
	}
	return tree, versions, nil
}

func fileLayer(description *spec.Image, architecture string) (*assemble.Tree, error) {
	tree := assemble.NewTree()
	for _, d := range description.Directories {
		mode, err := spec.ParseMode(d.Mode, 0o755)
		if err != nil {
			return nil, err
		}
		if err := tree.AddDirectory(d.Path, mode); err != nil {
			return nil, err
		}
	}
	for _, f := range description.Files {
		if err := addFile(tree, f, architecture); err != nil {
			return nil, err
		}
	}
	for _, l := range description.Links {
		for _, name := range l.Names {
			if err := tree.AddLink(path.Join(l.In, name), l.Target); err != nil {
				return nil, err
			}
		}
	}
	return tree, nil
}

func addFile(tree *assemble.Tree, f spec.File, architecture string) error {
	data := []byte(f.Content)
	if f.Source != "" {
		var err error
		if data, err = os.ReadFile(f.Source); err != nil {
			return fmt.Errorf("file for %s: %w", f.Path, err)
		}
		if err := checkProgram(data, architecture); err != nil {
			return fmt.Errorf("%s for %s: %w", f.Source, f.Path, err)
		}
	}
	mode, err := spec.ParseMode(f.Mode, 0o644)
	if err != nil {
		return err
	}
	return tree.AddFile(f.Path, mode, data)
}

// machines maps Go's names to those in a program's header.
func machines() map[string]elf.Machine {
	return map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
}

// checkProgram refuses a program for another machine: such an image would only fail when a
// node starts it.
func checkProgram(data []byte, architecture string) error {
	if !bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
		return nil
	}
	program, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	if want, known := machines()[architecture]; known && program.Machine != want {
		return fmt.Errorf("%w: %s, the image is for %s", ErrArchitecture, program.Machine, architecture)
	}
	return nil
}
