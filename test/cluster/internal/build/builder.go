package build

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/gpu-dra/driver/test/cluster/internal/progress"
)

// Builder builds into one folder.
type Builder struct {
	// Source is the folder of test/cluster, Bin that of the programs.
	Source, Bin string
	Say         *progress.Printer
}

// Images is the group of the base images.
const Images = "images"

// Build makes the named groups, or all that a cluster needs, where they are not up to date.
func (b *Builder) Build(ctx context.Context, groups []string) error {
	components, err := Select(groups)
	if err != nil {
		return err
	}
	for i, c := range components {
		if err := b.component(ctx, c, fmt.Sprintf("build %s (%d of %d)", c.Output, i+1, len(components))); err != nil {
			return err
		}
	}
	for _, g := range groups {
		if g == Images {
			groups = nil
		}
	}
	if len(groups) == 0 {
		return b.images(ctx)
	}
	return nil
}

func (b *Builder) component(ctx context.Context, c Component, title string) error {
	dir := filepath.Join(b.Source, "modules", c.Module)
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return fmt.Errorf("build %s: %w", c.Output, err)
	}
	gosum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return fmt.Errorf("build %s: %w", c.Output, err)
	}
	flags, err := c.linkerFlags(string(gomod))
	if err != nil {
		return err
	}
	out := filepath.Join(b.Bin, c.Output)
	args := c.arguments(out, flags)
	stamp := hash(string(gomod), string(gosum), strings.Join(args, " "), strings.Join(c.environment(), " "))
	if b.upToDate(c.Output, stamp) {
		return nil
	}
	return b.Say.Step(title, func(note func(string)) error {
		if err := run(ctx, dir, c.environment(), countPackages(note), "go", args...); err != nil {
			return fmt.Errorf("build %s: %w", c.Output, err)
		}
		return b.stamp(c.Output, stamp)
	})
}

// hash mixes in what every build depends on.
func hash(inputs ...string) string {
	h := sha256.New()
	for _, s := range append([]string{runtime.Version(), runtime.GOARCH}, inputs...) {
		_, _ = fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (b *Builder) stampFile(output string) string {
	return filepath.Join(b.Bin, ".stamps", strings.ReplaceAll(output, "/", "_"))
}

// upToDate tells whether the output is there and was made from the same inputs.
func (b *Builder) upToDate(output, stamp string) bool {
	have, err := os.ReadFile(b.stampFile(output))
	if err != nil || string(have) != stamp {
		return false
	}
	_, err = os.Stat(filepath.Join(b.Bin, output))
	return err == nil
}

func (b *Builder) stamp(output, stamp string) error {
	file := b.stampFile(output)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("stamp: %w", err)
	}
	if err := renameio.WriteFile(file, []byte(stamp), 0o644); err != nil {
		return fmt.Errorf("stamp: %w", err)
	}
	return nil
}

// countPackages turns the lines of `go build -v` into a note.
func countPackages(note func(string)) func(string) {
	compiled, downloaded := 0, 0
	return func(line string) {
		switch {
		case strings.HasPrefix(line, "go: downloading"):
			downloaded++
		case !strings.ContainsRune(line, ' '):
			compiled++
		}
		note(fmt.Sprintf("(%d modules downloaded, %d packages compiled)", downloaded, compiled))
	}
}

// keepLines is how much of a command's output an error shows.
const keepLines = 20

// run runs a command at low priority: a long build must leave the machine usable. Each line
// of its output goes to line; the last ones are in the error.
func run(ctx context.Context, dir string, env []string, line func(string), name string, args ...string) (err error) {
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "5", name}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	var last []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		scanner := bufio.NewScanner(reader)
		for scanner.Scan() {
			line(scanner.Text())
			last = append(last, scanner.Text())
			last = last[max(0, len(last)-keepLines):]
		}
		// A line too long for the scanner: the rest is read, so that the command can go on.
		_, _ = io.Copy(io.Discard, reader)
	}()
	err = cmd.Run()
	err = errors.Join(err, writer.Close())
	<-done
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, strings.Join(last, "\n"))
	}
	return nil
}

// baseImages are the images that every node has, by their description in images/.
func baseImages() []string { return []string{"pause", "busybox", "workload"} }

// images builds the image builder, the pause program, and the base images.
func (b *Builder) images(ctx context.Context) error {
	builder := filepath.Join(b.Source, "..", "..", "deployments", "container")
	inputs, err := contents(filepath.Join(b.Source, Images), filepath.Join(builder, "cmd"), filepath.Join(builder, "internal"),
		filepath.Join(builder, "go.mod"), filepath.Join(builder, "go.sum"))
	if err != nil {
		return fmt.Errorf("build images: %w", err)
	}
	stamp := hash(inputs...)
	current := b.upToDate("imagebuild", stamp)
	for _, name := range baseImages() {
		current = current && b.upToDate(filepath.Join(Images, name+".tar"), stamp)
	}
	if current {
		return nil
	}
	return b.Say.Step("build base images", func(note func(string)) error {
		if err := os.MkdirAll(filepath.Join(b.Bin, Images), 0o755); err != nil {
			return fmt.Errorf("build images: %w", err)
		}
		pause := filepath.Join(b.Bin, "pause")
		steps := [][]string{
			{builder, "go", "build", "-v", "-trimpath", "-o", filepath.Join(b.Bin, "imagebuild"), "./cmd/imagebuild"},
			{b.Source, "gcc", "-Wall", "-Werror", "-Os", "-static", "-s", "-o", pause, filepath.Join(Images, "pause.c")},
		}
		for _, name := range baseImages() {
			steps = append(steps, []string{
				b.Source, filepath.Join(b.Bin, "imagebuild"), "--config", filepath.Join(Images, name+".yaml"),
				"--define", "PAUSE=" + pause, "--out", filepath.Join(b.Bin, Images, name+".tar"),
			})
		}
		for _, s := range steps {
			if err := run(ctx, s[0], []string{"GOWORK=off", "GOFLAGS=-buildvcs=false"}, countPackages(note), s[1], s[2:]...); err != nil {
				return fmt.Errorf("build images: %w", err)
			}
		}
		errs := []error{b.stamp("imagebuild", stamp)}
		for _, name := range baseImages() {
			errs = append(errs, b.stamp(filepath.Join(Images, name+".tar"), stamp))
		}
		return errors.Join(errs...)
	})
}

// contents reads every file below the paths, in a fixed order.
func contents(paths ...string) ([]string, error) {
	var all []string
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			raw, err := os.ReadFile(path)
			all = append(all, filepath.Base(path), string(raw))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
