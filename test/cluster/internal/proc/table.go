// Package proc starts, finds and ends the long-running processes of a cluster. The process
// table is the only record: each process carries its owner, its name and a hash of how it
// was started in its environment, so nothing is stale after a crash, a reboot or a kill of
// the tool itself. It does not know what the processes are.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The marks in a process's environment.
const (
	ownerKey     = "TEST_CLUSTER_OWNER"
	componentKey = "TEST_CLUSTER_COMPONENT"
	specKey      = "TEST_CLUSTER_SPEC"
)

// errStat is wrapped when a stat file is not of the kernel's form.
var errStat = errors.New("malformed /proc/PID/stat")

// Process is one marked process. PID and Start together name it for good: a PID alone may
// be given to another process.
type Process struct {
	PID int
	// Start is the start time in clock ticks since boot.
	Start uint64
	// Owner, Component and Spec are the marks; children inherit them.
	Owner, Component, Spec string
	// Leader tells the component itself from what it started: it leads its session.
	Leader bool
}

// Table reads a proc file system.
type Table struct{ Root string }

// Scan returns every living process with an owner's mark, by PID. An empty owner means any.
// Zombies count as gone.
func (t Table) Scan(owner string) ([]Process, error) {
	entries, err := os.ReadDir(t.Root)
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	var found []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process may end at any moment; what cannot be read is not ours or is gone.
		p, ok := t.read(pid)
		if ok && (owner == "" || p.Owner == owner) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b Process) int { return a.PID - b.PID })
	return found, nil
}

func (t Table) read(pid int) (Process, bool) {
	environ, err := t.environ(pid)
	if err != nil || !bytes.Contains(environ, []byte(ownerKey+"=")) {
		return Process{}, false
	}
	p := Process{PID: pid}
	for pair := range strings.SplitSeq(string(environ), "\x00") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case ownerKey:
			p.Owner = value
		case componentKey:
			p.Component = value
		case specKey:
			p.Spec = value
		}
	}
	s, err := t.stat(pid)
	if err != nil || s.zombie || p.Owner == "" {
		return Process{}, false
	}
	p.Start, p.Leader = s.start, s.session == pid
	return p, true
}

// environ reads a process's environment. In the middle of an exec it is empty for a moment,
// and what is started here goes through several: an empty one of a young process is read
// again, so that nothing of ours is overlooked and started twice.
func (t Table) environ(pid int) ([]byte, error) {
	file := filepath.Join(t.Root, strconv.Itoa(pid), "environ")
	raw, err := os.ReadFile(file)
	for tries := 0; err == nil && len(raw) == 0 && tries < 100 && t.young(pid); tries++ {
		time.Sleep(2 * time.Millisecond)
		raw, err = os.ReadFile(file)
	}
	return raw, err
}

// young tells whether a program, not a kernel thread, was started in the last ten seconds.
func (t Table) young(pid int) bool {
	s, err := t.stat(pid)
	if err != nil || s.zombie || s.kernel {
		return false
	}
	raw, err := os.ReadFile(filepath.Join(t.Root, "uptime"))
	if err != nil {
		return false
	}
	uptime, err := strconv.ParseFloat(strings.Split(string(raw)+" ", " ")[0], 64)
	// The kernel counts start times in hundredths of a second towards programs, on every
	// architecture that Kubernetes runs on.
	return err == nil && uptime-float64(s.start)/100 < 10
}

// Alive tells whether this very process still runs.
func (t Table) Alive(p Process) bool {
	s, err := t.stat(p.PID)
	return err == nil && !s.zombie && s.start == p.Start
}

type stat struct {
	zombie  bool
	kernel  bool // a kernel thread
	session int
	start   uint64
}

func (t Table) stat(pid int) (stat, error) {
	raw, err := os.ReadFile(filepath.Join(t.Root, strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return parseStat(string(raw))
}

// parseStat reads proc_pid_stat(5): the name is in parentheses and may itself hold spaces
// and parentheses; after it come state (field 3), session (6), flags (9) and starttime (22).
func parseStat(raw string) (stat, error) {
	end := strings.LastIndexByte(raw, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("%w: no name in %q", errStat, raw)
	}
	fields := strings.Fields(raw[end+1:])
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("%w: %d fields after the name, want at least 20", errStat, len(fields))
	}
	session, err := strconv.Atoi(fields[3])
	if err != nil {
		return stat{}, fmt.Errorf("%w: session: %w", errStat, err)
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("%w: flags: %w", errStat, err)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("%w: starttime: %w", errStat, err)
	}
	const kernelThread = 0x00200000 // PF_KTHREAD
	return stat{
		zombie: fields[0] == "Z" || fields[0] == "X", kernel: flags&kernelThread != 0, session: session, start: start,
	}, nil
}

// RSS is the process's resident memory in bytes, 0 where it cannot be read.
func (t Table) RSS(p Process) int64 {
	raw, err := os.ReadFile(filepath.Join(t.Root, strconv.Itoa(p.PID), "statm"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
