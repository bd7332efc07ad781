package host

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Mounts returns the mount points of this process's mount namespace, in mount order.
func Mounts() ([]string, error) {
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	return parseMounts(string(raw)), nil
}

// parseMounts reads the second field of each line of fstab(5).
func parseMounts(raw string) []string {
	var points []string
	for line := range strings.Lines(raw) {
		if fields := strings.Fields(line); len(fields) >= 2 {
			points = append(points, unescape(fields[1]))
		}
	}
	return points
}

// unescape resolves the octal escapes that the kernel writes for blanks and backslashes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// UnmountBelow detaches every mount below dir, the last mounted first.
func UnmountBelow(dir string) error {
	points, err := Mounts()
	if err != nil {
		return err
	}
	slices.Reverse(points)
	var errs []error
	for _, p := range points {
		if strings.HasPrefix(p, dir+"/") {
			if err := syscall.Unmount(p, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
			}
		}
	}
	return errors.Join(errs...)
}
