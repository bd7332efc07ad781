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
	"time"
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

// userHZ is the unit of processor times in /proc, the same on every Linux that Go runs on.
const userHZ = 100

// readCPU reads the processor time that a process has used so far from /proc/PID/stat.
func readCPU(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("usage of a process: %w", err)
	}
	return parseCPU(raw)
}

func parseCPU(raw []byte) (time.Duration, error) {
	// The program's name is in brackets and may have any of those itself. What follows begins with field 3.
	const user, system = 14 - 3, 15 - 3
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) <= system {
		return 0, fmt.Errorf("%w: stat has %d fields after the name", errProc, len(fields))
	}
	var ticks uint64
	for _, i := range []int{user, system} {
		n, err := strconv.ParseUint(fields[i], 10, 48)
		if err != nil {
			return 0, fmt.Errorf("%w: stat has %q for a time", errProc, fields[i])
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / userHZ, nil
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
