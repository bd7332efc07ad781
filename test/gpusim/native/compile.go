package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func flags() []string {
	return []string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-error=deprecated-declarations", "-Igen", "-Ilib"}
}

// Tool is one program of the driver.
type Tool struct {
	// Name is the program's file.
	Name string
	// Dirs hold its sources.
	Dirs []string
}

// Tools are the programs that are built. Directory tool is part of each.
func Tools() []Tool {
	return []Tool{
		{"nvidia-smi", []string{"smi"}},
		{"nvidia-cuda-mps-control", []string{"mps", "mpsctl"}},
		{"nvidia-cuda-mps-server", []string{"mps", "mpssrv"}},
		{"gpusim-client", []string{"mps", "client"}},
	}
}

// sourcesOf are the files in the given directories.
func (t *Tool) sourcesOf(names []string) []string {
	var out []string
	for _, name := range names {
		dir := filepath.Dir(name)
		if filepath.Ext(name) == ".c" && (dir == "tool" || slices.Contains(t.Dirs, dir)) {
			out = append(out, name)
		}
	}
	return out
}

// compile writes the sources below work and builds every artifact there.
func compile(ctx context.Context, opts Options, work string, sources map[string][]byte) error {
	var lib []string
	names := sortedNames(sources)
	for _, name := range names {
		path := filepath.Join(work, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, sources[name], 0o644); err != nil {
			return err
		}
		if strings.HasPrefix(name, "lib/") && filepath.Ext(name) == ".c" {
			lib = append(lib, name)
		}
	}
	base := append(flags(), opts.Flags...)
	library := append(append([]string{}, base...), "-shared", "-fPIC", "-fvisibility=hidden",
		"-Wl,-soname,libnvidia-ml.so.1", "-Wl,-z,lazy", "-o", "libnvidia-ml.so.1")
	if err := run(ctx, opts.Compiler, work, append(library, lib...)); err != nil {
		return fmt.Errorf("build libnvidia-ml.so.1: %w", err)
	}
	// An empty library with a name to be replaced: the model of all stubs of a driver root.
	stub := []string{"-shared", "-nostdlib", "-Wl,-soname," + opts.StubName, "-o", "stub.so", "-x", "c", "/dev/null"}
	if err := run(ctx, opts.Compiler, work, stub); err != nil {
		return fmt.Errorf("build stub library: %w", err)
	}
	for _, tool := range Tools() {
		// Its own start file instead of the compiler's: see tool/start.c.
		args := append(append([]string{}, base...), "-Itool", "-Imps", "-nostartfiles", "-fPIE", "-pie", "-Wl,--no-as-needed", "-l:libdl.so.2",
			"-Wl,--as-needed", "-o", tool.Name)
		if err := run(ctx, opts.Compiler, work, append(args, tool.sourcesOf(names)...)); err != nil {
			return fmt.Errorf("build %s: %w", tool.Name, err)
		}
	}
	return nil
}

func run(ctx context.Context, compiler, dir string, args []string) error {
	cmd := exec.CommandContext(ctx, compiler, args...)
	cmd.Dir = dir
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: %w; install gcc or set CC", ErrNoCompiler, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", compiler, err, strings.TrimSpace(output.String()))
	}
	return nil
}
