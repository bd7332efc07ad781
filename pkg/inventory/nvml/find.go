package nvml

import "github.com/gpu-dra/driver/pkg/driverroot"

// libraryName is the name that the driver's packages link to the library's file.
const libraryName = "libnvidia-ml.so.1"

// NotFoundError tells that no driver library is there (yet).
type NotFoundError = driverroot.NotFoundError

// Locate finds the driver's library below root, the driver root as this process sees it: see
// driverroot.Find. The error is a NotFoundError when no directory has the library.
func Locate(root string) (string, error) {
	return driverroot.Find(root, driverroot.LibraryDirs(), libraryName)
}
