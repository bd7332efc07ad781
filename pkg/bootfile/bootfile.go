// Package bootfile replaces files whose content is worth nothing after a reboot, such as what was
// done to hardware since this boot: they outlive the process, and need no wait for the disk. It is
// for the packages that keep such notes. It must not know what they say.
package bootfile

import (
	"os"
	"path/filepath"
)

// Replace writes a file so that readers, and whoever comes after a kill, see the old content or the
// new one. There is one writer at a time: the temporary file has one name for each file, so that
// what a killed process left is written over. The directory must be there.
func Replace(path string, data []byte) error {
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
