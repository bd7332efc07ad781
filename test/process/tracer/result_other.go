//go:build !amd64

package tracer

import "errors"

var errNoInjection = errors.New("calls can be made to fail on amd64 only")

func skipCall(int) error { return errNoInjection }

func setResult(int, error) error { return errNoInjection }
