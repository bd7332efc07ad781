// Package procstat reads /proc/PID/stat: who a process's parent is and when it began, which tells
// it from another that has its number later. It is for whoever looks at processes that are not its
// own children. It must not know what the processes are.
package procstat

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// TicksPerSecond is the kernel's USER_HZ, in which /proc counts: 100 on all platforms of Linux that
// have GPUs of this kind.
const TicksPerSecond = 100

// Stat is what is read of a process.
type Stat struct {
	// Parent is the number of its parent.
	Parent int
	// Started is when it began, in ticks since the boot.
	Started uint64
}

// Read looks at a process below a /proc. One that has ended is an error that wraps fs.ErrNotExist,
// or ESRCH where it ends meanwhile.
func Read(proc string, pid int) (Stat, error) {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Stat{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	s, err := Parse(data)
	if err != nil {
		return Stat{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return s, nil
}

var errShort = errors.New("its stat is cut short")

// Parse takes the fields 4 and 22 of proc(5). The second is a name in parentheses, which may have
// blanks and parentheses itself: what counts begins behind the last.
func Parse(stat []byte) (Stat, error) {
	const parent, started = 4 - 3, 22 - 3
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:])
	if end < 0 || len(fields) <= started {
		return Stat{}, errShort
	}
	p, err := strconv.ParseUint(string(fields[parent]), 10, 31)
	if err != nil {
		return Stat{}, fmt.Errorf("number of its parent: %w", err)
	}
	s, err := strconv.ParseUint(string(fields[started]), 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("when it began: %w", err)
	}
	return Stat{Parent: int(p), Started: s}, nil
}
