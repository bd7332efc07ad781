package bed

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// errProc says that a file of /proc has not the expected form.
var errProc = errors.New("unexpected text in /proc")

// Memory is what a process has in RAM, in bytes.
type Memory struct {
	// RSS is all of it: Anon (heap, stacks) and File (pages of the program and its libraries).
	RSS, Anon, File int64
	Threads         int64
}

// readMemory reads /proc/PID/status.
func readMemory(pid int) (Memory, error) {
	var m Memory
	err := readFields(fmt.Sprintf("/proc/%d/status", pid), map[string]*int64{
		"VmRSS": &m.RSS, "RssAnon": &m.Anon, "RssFile": &m.File, "Threads": &m.Threads,
	})
	const kib = 1024
	m.RSS, m.Anon, m.File = m.RSS*kib, m.Anon*kib, m.File*kib
	return m, err
}

// IO is what a process has written so far, in bytes.
type IO struct {
	// Disk is what it made the kernel write to storage, in whole pages.
	Disk int64
	// Calls is what it passed to write calls, sockets included.
	Calls int64
}

// readIO reads /proc/PID/io.
func readIO(pid int) (IO, error) {
	var io IO
	err := readFields(fmt.Sprintf("/proc/%d/io", pid), map[string]*int64{"write_bytes": &io.Disk, "wchar": &io.Calls})
	return io, err
}

// readFields reads numbers from lines "name: number [unit]". All of them must be there.
func readFields(path string, into map[string]*int64) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("usage of a process: %w", err)
	}
	if err := parseFields(raw, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func parseFields(raw []byte, into map[string]*int64) error {
	found := 0
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), ":")
		to, wanted := into[name]
		if !ok || !wanted {
			continue
		}
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %s is %q", errProc, name, value)
		}
		*to = n
		found++
	}
	if found != len(into) {
		return fmt.Errorf("%w: found %d of %d fields", errProc, found, len(into))
	}
	return nil
}

// Files gives the size in bytes of every regular file below the directories, by path. What vanishes while
// it looks is left out.
func Files(dirs ...string) (map[string]int64, error) {
	sizes := map[string]int64{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				var info fs.FileInfo
				if info, err = d.Info(); err == nil {
					sizes[path] = info.Size()
				}
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("sizes of files: %w", err)
		}
	}
	return sizes, nil
}
