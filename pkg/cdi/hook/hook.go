// Package hook puts the program that CDI specs name as a hook where the container runtime finds it.
// It is for the node plugin, which brings the program in its image. It must not know what the
// program does.
package hook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Install copies a hook's binary from this process's image to the plugin's directory,
// where the container runtime finds and runs it, and returns that path. The copy replaces the
// old one in one step: a container that starts meanwhile runs one or the other, never a half.
// The binary has megabytes, so it is never held in memory as a whole.
func Install(source, dataDir string) (string, error) {
	target := filepath.Join(dataDir, filepath.Base(source))
	same, err := sameContent(source, target)
	if err != nil {
		return "", fmt.Errorf("read the hook's program: %w", err)
	}
	if same {
		if err := os.Chmod(target, 0o755); err != nil {
			return "", fmt.Errorf("make the hook's program executable: %w", err)
		}
		return target, nil
	}
	if err := copyProgram(source, target); err != nil {
		return "", fmt.Errorf("copy the hook's program to %s: %w", target, err)
	}
	return target, nil
}

// sameContent compares two files; a missing second one differs.
func sameContent(first, second string) (bool, error) {
	a, err := os.Open(first)
	if err != nil {
		return false, err
	}
	defer func() { _ = a.Close() }()
	b, err := os.Open(second)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = b.Close() }()
	const block = 64 << 10
	mine, theirs := make([]byte, block), make([]byte, block)
	for {
		n, errA := io.ReadFull(a, mine)
		m, errB := io.ReadFull(b, theirs)
		if n != m || !bytes.Equal(mine[:n], theirs[:m]) {
			return false, nil
		}
		if errA != nil || errB != nil {
			return isEnd(errA) && isEnd(errB), errors.Join(unlessEnd(errA), unlessEnd(errB))
		}
	}
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func unlessEnd(err error) error {
	if isEnd(err) {
		return nil
	}
	return err
}

func copyProgram(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := renameio.NewPendingFile(target, renameio.WithTempDir(filepath.Dir(target)),
		renameio.WithPermissions(0o755), renameio.IgnoreUmask())
	if err != nil {
		return err
	}
	defer func() { _ = out.Cleanup() }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.CloseAtomicallyReplace()
}
