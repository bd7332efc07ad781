package nvml

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// libraryName is the name that the driver's packages link to the library's file.
const libraryName = "libnvidia-ml.so.1"

// searchDirs lists where drivers keep the library, relative to the driver root, best first.
// Directories of 64-bit libraries come before those that hold 32-bit ones on some systems.
func searchDirs() []string {
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

// NotFoundError tells that no driver library is there (yet).
type NotFoundError struct {
	// Root is the driver root that was searched, Dirs the directories below it.
	Root string
	Dirs []string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%s is not below the driver root %s (looked in %s)", libraryName, e.Root, strings.Join(e.Dirs, ", "))
}

// Locate finds the driver's library below root, the driver root as this process sees it.
// Symbolic links are followed as if root were the file system's root. The path returned has no
// symbolic links below root. The error is a NotFoundError when no directory has the library.
func Locate(root string) (string, error) {
	var odd []error
	for _, dir := range searchDirs() {
		file, err := securejoin.SecureJoin(root, path.Join(dir, libraryName))
		if err != nil {
			odd = append(odd, fmt.Errorf("%s: %w", dir, err))
			continue
		}
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", errors.Join(append([]error{&NotFoundError{Root: root, Dirs: searchDirs()}}, odd...)...)
}
