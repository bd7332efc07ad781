package walkthrough

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// pathsBelow lists all files and directories below directories, in order; directories end in a
// slash. A directory that is not there has none.
func pathsBelow(dirs ...string) ([]string, error) {
	var paths []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case path == dir:
			case entry.IsDir():
				paths = append(paths, path+"/")
			default:
				paths = append(paths, path)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list files: %w", err)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// added are the paths that are there now, were not before, and must not be. What the driver keeps
// for the next claim may stay: the base spec, a lock for each GPU, directories. What names a claim
// may not.
func added(before, now []string, claims ...string) []string {
	var extra []string
	for _, path := range now {
		named := slices.ContainsFunc(claims, func(uid string) bool { return strings.Contains(path, uid) })
		kept := filepath.Base(path) == baseSpec || strings.HasSuffix(path, "/") || filepath.Base(filepath.Dir(path)) == "locks"
		if !slices.Contains(before, path) && (named || !kept) {
			extra = append(extra, path)
		}
	}
	return extra
}

// sockets are the paths that are unix sockets by their names.
func sockets(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return filepath.Ext(path) != ".sock" })
}
