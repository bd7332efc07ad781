// Package hook is what lies between a container that is being created and the plugin that has the
// GPU driver limit its memory: the runtime's hook finds the container's cgroup and asks the plugin
// over a unix socket; the container is created when that has answered. It is for cmd/gpu-limit-hook
// and for package memlimit. It must not know claims, NVML or Kubernetes, as the hook's program is
// run at every start of a container.
package hook

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// Version is that of the messages. The hook's program is replaced with the plugin, but a container
// may be created in between: the plugin answers all versions up to its own.
const Version = 1

// maxMessage bounds a message, and what a runtime tells of a container, in bytes.
const maxMessage = 1 << 20

// Request asks for the limit of one device of a claim: JSON in one line, one a connection.
type Request struct {
	Version int    `json:"version"`
	Claim   string `json:"claim"`
	Device  string `json:"device"`
	Share   string `json:"share"`
	// Cgroup is the container's, below the root of the host's cgroup v2 hierarchy.
	Cgroup string `json:"cgroup"`
}

// Validate tells what is wrong with a request.
func (r Request) Validate() error {
	switch {
	case r.Version < 1 || r.Version > Version:
		return fmt.Errorf("version: %d is not known here: use 1 to %d", r.Version, Version)
	case r.Claim == "" || r.Device == "" || r.Share == "":
		return errors.New("claim, device, share: none may be empty")
	}
	return CheckCgroup(r.Cgroup)
}

// Response is the one message back. An empty error says that the limit is in force.
type Response struct {
	Version int    `json:"version"`
	Error   string `json:"error,omitzero"`
}

// ErrNoCgroup tells that a container has no cgroup v2 of its own, by which the driver could know it.
var ErrNoCgroup = errors.New("the container has no cgroup of its own in the hierarchy of cgroup v2: limits by the GPU driver need a node with cgroup v2 (stat -fc %T /sys/fs/cgroup says cgroup2fs)")

// CheckCgroup tells whether a path can be that of a container's cgroup: absolute, clean, and not
// the root, whose limit would be everybody's.
func CheckCgroup(cgroup string) error {
	if cgroup == "/" {
		return ErrNoCgroup
	}
	if !path.IsAbs(cgroup) || path.Clean(cgroup) != cgroup || strings.HasPrefix(cgroup, "/..") || strings.ContainsRune(cgroup, 0) {
		return fmt.Errorf("cgroup: %q is not allowed: use the path that /proc/<pid>/cgroup has behind \"0::\"", cgroup)
	}
	return nil
}

// state is what a runtime tells its hooks (OCI runtime specification, "State").
type state struct {
	PID int `json:"pid"`
}

// Cgroup finds the cgroup of the container of which a runtime tells. procRoot is the host's /proc.
func Cgroup(told io.Reader, procRoot string) (string, error) {
	data, err := io.ReadAll(io.LimitReader(told, maxMessage))
	if err != nil {
		return "", fmt.Errorf("read the container's state from the runtime: %w", err)
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return "", fmt.Errorf("the container's state from the runtime: %w", err)
	}
	if s.PID <= 0 {
		return "", fmt.Errorf("the container's state from the runtime names no process (pid %d)", s.PID)
	}
	file, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(s.PID), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("find the container's cgroup: %w", err)
	}
	return parseCgroups(file)
}

// parseCgroups finds the line of cgroup v2 (cgroups(7)): "0::<path>".
func parseCgroups(file []byte) (string, error) {
	for line := range bytes.Lines(file) {
		if cgroup, ok := strings.CutPrefix(strings.TrimSuffix(string(line), "\n"), "0::"); ok {
			return cgroup, CheckCgroup(cgroup)
		}
	}
	return "", ErrNoCgroup
}

// Read reads one message. It never takes in more than a message may have.
func Read[M Request | Response](r io.Reader) (M, error) {
	var m M
	line, err := bufio.NewReader(io.LimitReader(r, maxMessage)).ReadBytes('\n')
	if err != nil {
		return m, fmt.Errorf("read a message of at most %d bytes: %w", maxMessage, err)
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("decode a message: %w", err)
	}
	return m, nil
}

// Write writes one message.
func Write[M Request | Response](w io.Writer, m M) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// retry is the time between two tries to reach the plugin.
const retry = 50 * time.Millisecond

// RefusedError is what the plugin answered instead of setting the limit.
type RefusedError struct{ Message string }

func (e *RefusedError) Error() string { return e.Message }

// Ask asks the plugin that listens at the socket for the limit, until it answers or the context
// ends: a plugin that is being updated is back within seconds, and what it is asked for can be
// repeated. Its refusal is a *RefusedError.
func Ask(ctx context.Context, socket string, r Request) error {
	r.Version = Version
	for {
		answer, err := once(ctx, socket, r)
		if err == nil && answer.Error != "" {
			return &RefusedError{answer.Error}
		}
		if err == nil {
			return nil
		}
		timer := time.NewTimer(retry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("the plugin of the GPU driver does not answer at %s, so the container would be without its limit of GPU memory: %w; see that the plugin's pod runs on this node", socket, err)
		}
	}
}

func once(ctx context.Context, socket string, r Request) (Response, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return Response{}, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := Write(conn, r); err != nil {
		return Response{}, err
	}
	return Read[Response](conn)
}
