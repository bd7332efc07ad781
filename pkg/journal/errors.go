package journal

import (
	"errors"
	"fmt"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// ErrNotFound means that there is no record of the claim.
var ErrNotFound = errors.New("no record of this claim")

// CorruptError is a file in the place of a record that cannot be used: torn, empty, changed,
// or not ours. Quarantine sets it aside.
type CorruptError struct {
	UID  types.UID
	Path string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("record %s cannot be used: %v", e.Path, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// NewerFormatError is a record that a later release wrote in a format this one does not know.
// The file is left as it is.
type NewerFormatError struct {
	Path    string
	Version int
}

func (e *NewerFormatError) Error() string {
	return fmt.Sprintf("record %s has format %d, this release reads up to %d: run the release that wrote it, "+
		"or let it unprepare the claim before the downgrade", e.Path, e.Version, FormatVersion)
}

// WriteError is a change of the journal that did not happen, or (after a failed sync of the
// directory) is not known to be durable. The record that was there before is intact.
type WriteError struct {
	Op   string
	Path string
	Err  error
}

func (e *WriteError) Error() string {
	msg := fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
	switch {
	case errors.Is(e.Err, syscall.ENOSPC), errors.Is(e.Err, syscall.EDQUOT):
		return msg + " (free space or inodes on the file system of the state directory)"
	case errors.Is(e.Err, syscall.EROFS):
		return msg + " (the file system of the state directory is read-only: mount it writable or check the disk)"
	}
	return msg
}

func (e *WriteError) Unwrap() error { return e.Err }
