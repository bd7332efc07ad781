package session

import (
	"github.com/gpu-dra/driver/pkg/driverroot"
	"github.com/gpu-dra/driver/pkg/inventory"
)

// libraryName is the name that the driver's packages link to the library's file.
const libraryName = "libnvidia-ml.so.1"

// NotFoundError tells that no driver library is there (yet).
type NotFoundError = driverroot.NotFoundError

// absentError makes a library that cannot be found an inventory.ErrNoDriver.
type absentError struct{ error }

func (absentError) Is(target error) bool { return target == inventory.ErrNoDriver }

func (e absentError) Unwrap() error { return e.error }

// Locate finds the driver's library below root, the driver root as this process sees it: see
// driverroot.Find. The error is a NotFoundError when no directory has the library.
func Locate(root string) (string, error) {
	path, err := driverroot.Find(root, driverroot.LibraryDirs(), libraryName)
	if err != nil {
		return "", absentError{err}
	}
	return path, nil
}
