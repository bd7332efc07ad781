package mps

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"
)

// ProtocolVersion is that of the messages. A supervisor answers every version from 1 to its own,
// since it is updated on its own and later than the plugin as a rule; members that one side does
// not know are passed over.
const ProtocolVersion = 1

// maxMessage bounds one message in bytes: a list of all daemons of a node is far below it.
const maxMessage = 1 << 20

// Op is what is asked of the supervisor.
type Op string

// The operations.
const (
	// OpEnsure has a daemon running that is as the spec says, and answers when it serves.
	OpEnsure Op = "ensure"
	// OpStop ends a daemon and removes what was its; one that is not there is a success.
	OpStop Op = "stop"
	// OpList tells of all daemons.
	OpList Op = "list"
)

// Request is one message to the supervisor: JSON in one line, one a connection.
type Request struct {
	Version int `json:"version"`
	Op      Op  `json:"op"`
	// Name is the daemon's, see CheckName.
	Name string `json:"name,omitzero"`
	// Spec is for OpEnsure.
	Spec *Spec `json:"spec,omitzero"`
	// TimeoutMillis bounds the work; the supervisor has a bound of its own, too.
	TimeoutMillis int64 `json:"timeoutMillis,omitzero"`
}

// Timeout is the bound that the request gives, at most limit.
func (r Request) Timeout(limit time.Duration) time.Duration {
	if r.TimeoutMillis <= 0 || r.TimeoutMillis > limit.Milliseconds() {
		return limit
	}
	return time.Duration(r.TimeoutMillis) * time.Millisecond
}

// Validate tells what is wrong with a request.
func (r Request) Validate() error {
	if r.Version < 1 || r.Version > ProtocolVersion {
		return fmt.Errorf("version: %d is not known here: use 1 to %d", r.Version, ProtocolVersion)
	}
	switch r.Op {
	case OpList:
		return nil
	case OpStop:
		return CheckName(r.Name)
	case OpEnsure:
		if r.Spec == nil {
			return errors.New("spec: is missing")
		}
		return errors.Join(CheckName(r.Name), r.Spec.Validate())
	}
	return fmt.Errorf("op: %q is not known here: use %s, %s or %s", r.Op, OpEnsure, OpStop, OpList)
}

// Response is the one message back.
type Response struct {
	Version int `json:"version"`
	// Error is empty for a success.
	Error string `json:"error,omitzero"`
	// Invalid tells that the request was refused as it is: trying again does not help.
	Invalid bool `json:"invalid,omitzero"`
	// Daemons are the one that was asked for, or all.
	Daemons []Status `json:"daemons,omitzero"`
}

// Status is how one daemon is.
type Status struct {
	Name string `json:"name"`
	Spec Spec   `json:"spec"`
	// Ready tells that it answers.
	Ready bool `json:"ready,omitzero"`
	// PID is the process in the supervisor's view, Started its start in the kernel's ticks since
	// boot: together they name one process in one boot.
	PID     int    `json:"pid,omitzero"`
	Started uint64 `json:"started,omitzero"`
	// Served tells that it has served since it was asked for: it may have clients.
	Served bool `json:"served,omitzero"`
	// Restarts is how often it was started again since it was asked for.
	Restarts int `json:"restarts,omitzero"`
	// Message says why it does not serve.
	Message string `json:"message,omitzero"`
}

// errTooLong tells that a peer sends no line, or no end of one.
var errTooLong = fmt.Errorf("a message has more than %d bytes", maxMessage)

// Read reads one message. It never takes in more than a message may have.
func Read[M Request | Response](r io.Reader) (M, error) {
	var m M
	limited := &io.LimitedReader{R: r, N: maxMessage + 1}
	line, err := bufio.NewReader(limited).ReadBytes('\n')
	switch {
	case err != nil && limited.N == 0:
		return m, errTooLong
	case err != nil:
		return m, fmt.Errorf("read a message: %w", err)
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
