// Package driverroot finds the files of the GPU driver below its root directory, wherever a
// distribution puts them. It is for everything that loads a library or runs a program of the
// driver. It must not open or run what it finds.
package driverroot

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// LibraryDirs lists where drivers keep their libraries, relative to the driver root, best first.
// Directories of 64-bit libraries come before those that hold 32-bit ones on some systems.
func LibraryDirs() []string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return []string{
		"usr/lib64",                              // Fedora, SUSE, Amazon Linux, driver containers
		"usr/lib/" + triplet,                     // Debian, Ubuntu
		"usr/lib/" + triplet + "/nvidia/current", // Debian's alternatives
		"lib64",
		"lib/" + triplet,
		"usr/lib",                          // Arch, Yocto
		"usr/local/glibc/usr/lib",          // Talos
		"home/kubernetes/bin/nvidia/lib64", // Google's Container-Optimized OS
		"opt/nvidia/lib64",                 // Flatcar
		"opt/nvidia/lib",
		"run/opengl-driver/lib", // NixOS
		"lib64/nvidia",          // Bottlerocket and older EL packages
		"usr/lib64/nvidia",
		"usr/lib/nvidia",
		"lib",
	}
}

// ProgramDirs lists where drivers keep their programs, relative to the driver root, best first.
func ProgramDirs() []string {
	return []string{
		"usr/bin",
		"usr/sbin",
		"bin",
		"sbin",
		"usr/lib/nvidia/current",         // Debian's alternatives
		"usr/local/bin",                  // Talos
		"home/kubernetes/bin/nvidia/bin", // Google's Container-Optimized OS
		"opt/nvidia/bin",                 // Flatcar
		"run/opengl-driver/bin",          // NixOS
	}
}

// NotFoundError tells that a file of the driver is not there (yet).
type NotFoundError struct {
	// Name is that of the file, Root the driver root that was searched, Dirs the directories
	// below it.
	Name, Root string
	Dirs       []string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%s is not below the driver root %s (looked in %s)", e.Name, e.Root, strings.Join(e.Dirs, ", "))
}

// Find finds a regular file in the first of dirs that has it, below root as this process sees
// it. Symbolic links are followed as if root were the file system's root; the path returned has
// none below root. The error is a *NotFoundError when no directory has the file.
func Find(root string, dirs []string, name string) (string, error) {
	var odd []error
	for _, dir := range dirs {
		file, err := securejoin.SecureJoin(root, path.Join(dir, name))
		if err != nil {
			odd = append(odd, fmt.Errorf("%s: %w", dir, err))
			continue
		}
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", errors.Join(append([]error{&NotFoundError{Name: name, Root: root, Dirs: dirs}}, odd...)...)
}
