package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/types"
)

const (
	suffix        = ".json"
	quarantineDir = "quarantine"
	// staleTemp is the age from which a temporary file cannot belong to a write in progress:
	// callers are bounded by the kubelet's 45 s.
	staleTemp = 5 * time.Minute
)

// Store keeps records in a directory, one file a claim, so that no operation but List costs
// more with more claims. It holds no state of its own: two processes may use one directory.
// Writers of one claim must exclude each other (package lock).
type Store struct {
	dir string
}

// Open makes the directory where it is missing and removes temporary files that a process
// left behind when it was killed in the middle of a write. It works on a read-only file system
// too, so that what is prepared can still be read there.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(filepath.Join(dir, quarantineDir), 0o700); err != nil {
		return nil, &WriteError{Op: "make the journal directory", Path: dir, Err: err}
	}
	s := &Store{dir: dir}
	return s, s.sweep(time.Now().Add(-staleTemp))
}

// Path is where the claim's record lies; for messages.
func (s *Store) Path(uid types.UID) string {
	return filepath.Join(s.dir, string(uid)+suffix)
}

// Save replaces the claim's record and returns when the new one survives a loss of power.
// It fails with a *WriteError; then the earlier record, if any, is intact, except that after a
// failed sync of the directory either of the two may be what a reboot finds.
func (s *Store) Save(r *Record) error {
	if err := CheckUID(r.UID); err != nil {
		return err
	}
	data, err := encode(r)
	if err != nil {
		return err
	}
	path := s.Path(r.UID)
	if err := s.replace(path, data); err != nil {
		return &WriteError{Op: "write record", Path: path, Err: err}
	}
	return nil
}

func (s *Store) replace(path string, data []byte) error {
	// The directory is named so that no TMPDIR is tried out: that costs six system calls and
	// would leave litter elsewhere.
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(s.dir), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Cleanup())
	}
	// Syncs the file and renames it.
	if err := f.CloseAtomicallyReplace(); err != nil {
		return errors.Join(err, f.Cleanup())
	}
	return s.syncDir()
}

// syncDir makes renames and removals durable, which renameio leaves out.
func (s *Store) syncDir() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Load reads the claim's record. Errors: ErrNotFound, *CorruptError, *NewerFormatError, or that
// of the file system.
func (s *Store) Load(uid types.UID) (*Record, error) {
	if err := CheckUID(uid); err != nil {
		return nil, err
	}
	path := s.Path(uid)
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("claim %s: %w", uid, ErrNotFound)
	}
	if errors.Is(err, errForeign) {
		return nil, &CorruptError{UID: uid, Path: path, Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("read record %s: %w", path, err)
	}
	r, err := decode(data)
	if newer := new(NewerFormatError); errors.As(err, &newer) {
		newer.Path = path
		return nil, newer
	}
	if err == nil && r.UID != uid {
		err = fmt.Errorf("it is the record of claim %s", r.UID)
	}
	if err != nil {
		return nil, &CorruptError{UID: uid, Path: path, Err: err}
	}
	return r, nil
}

var errForeign = errors.New("not a regular file of a possible size")

func read(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	// A directory, a pipe (opening one would block) or a file of gigabytes is not ours.
	if !info.Mode().IsRegular() || info.Size() > maxBody+1024 {
		return nil, errForeign
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxBody+1024))
	return data, errors.Join(err, f.Close())
}

// Delete removes the claim's record; that there is none is no error. The removal is made
// durable as well: a record that came back after a loss of power would be an owner that nobody
// unprepares, and would block its GPU until somebody removes it by hand.
func (s *Store) Delete(uid types.UID) error {
	if err := CheckUID(uid); err != nil {
		return err
	}
	path := s.Path(uid)
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = s.syncDir()
	}
	if err != nil {
		return &WriteError{Op: "remove record", Path: path, Err: err}
	}
	return nil
}

// Quarantine sets the claim's file aside under a name of its own in the sub-directory
// "quarantine" and returns where it lies now. Nothing is ever deleted there by this package.
func (s *Store) Quarantine(uid types.UID) (string, error) {
	if err := CheckUID(uid); err != nil {
		return "", err
	}
	from := s.Path(uid)
	to := filepath.Join(s.dir, quarantineDir, fmt.Sprintf("%s.%d%s", uid, time.Now().UnixNano(), suffix))
	err := os.Rename(from, to)
	if err == nil {
		err = s.syncDir()
	}
	if err != nil {
		return "", &WriteError{Op: "set aside record", Path: from, Err: err}
	}
	return to, nil
}

// Bad is an entry that List could not read.
type Bad struct {
	// UID is empty when the file's name is not that of a record; such a file is left alone.
	UID  types.UID
	Path string
	Err  error
}

// List reads all records, sorted by UID. One that cannot be read is reported and does not hide
// the others; the error is about the directory as a whole.
func (s *Store) List() ([]*Record, []Bad, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list the journal: %w", err)
	}
	var records []*Record
	var bad []Bad
	for _, e := range entries {
		if e.Name() == quarantineDir || isTemp(e.Name()) {
			continue
		}
		uid, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || CheckUID(types.UID(uid)) != nil {
			bad = append(bad, Bad{Path: filepath.Join(s.dir, e.Name()), Err: errors.New("the file's name is not that of a record")})
			continue
		}
		r, err := s.Load(types.UID(uid))
		switch {
		case errors.Is(err, ErrNotFound): // removed since the directory was read
		case err != nil:
			bad = append(bad, Bad{UID: types.UID(uid), Path: s.Path(types.UID(uid)), Err: err})
		default:
			records = append(records, r)
		}
	}
	slices.SortFunc(records, func(a, b *Record) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return records, bad, nil
}

// Count is the number of records, good or not, without reading them.
func (s *Store) Count() (int, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, fmt.Errorf("count the journal: %w", err)
	}
	n := 0
	for _, e := range entries {
		if !isTemp(e.Name()) && strings.HasSuffix(e.Name(), suffix) {
			n++
		}
	}
	return n, nil
}

// RemoveEmpty removes the journal's directories if there is nothing in them: no record, and
// nothing that was set aside. What is in them stays.
func (s *Store) RemoveEmpty() error {
	for _, dir := range []string{filepath.Join(s.dir, quarantineDir), s.dir} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return fmt.Errorf("remove the empty journal: %w", err)
		}
	}
	return nil
}

// isTemp tells the names that renameio gives to files that are being written: a dot, the name
// and a random number.
func isTemp(name string) bool {
	rest, dot := strings.CutPrefix(name, ".")
	uid, number, json := strings.Cut(rest, suffix)
	_, err := strconv.ParseUint(number, 10, 64)
	return dot && json && err == nil && CheckUID(types.UID(uid)) == nil
}

// sweep removes temporary files last written before the given time. One that cannot be removed
// is litter, not a reason to refuse the start.
func (s *Store) sweep(before time.Time) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("list the journal: %w", err)
	}
	for _, e := range entries {
		if !isTemp(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().Before(before) {
			continue
		}
		_ = os.Remove(filepath.Join(s.dir, e.Name()))
	}
	return nil
}
