package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func flags() []string {
	return []string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-error=deprecated-declarations", "-Igen", "-Ilib"}
}

// compile writes the sources below work and builds every artifact there.
func compile(ctx context.Context, opts Options, work string, sources map[string][]byte) error {
	var lib, smi []string
	for _, name := range sortedNames(sources) {
		path := filepath.Join(work, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, sources[name], 0o644); err != nil {
			return err
		}
		switch {
		case !strings.HasSuffix(name, ".c"):
		case strings.HasPrefix(name, "lib/"):
			lib = append(lib, name)
		case strings.HasPrefix(name, "smi/"):
			smi = append(smi, name)
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
	// Its own start file instead of the compiler's: see smi/start.c.
	tool := append(append([]string{}, base...), "-nostartfiles", "-fPIE", "-pie", "-Wl,--no-as-needed", "-l:libdl.so.2",
		"-Wl,--as-needed", "-o", "nvidia-smi")
	if err := run(ctx, opts.Compiler, work, append(tool, smi...)); err != nil {
		return fmt.Errorf("build nvidia-smi: %w", err)
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
