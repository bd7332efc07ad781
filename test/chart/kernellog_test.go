package chart

import "testing"

// The kernel log is mounted where it is asked for, and only to be read.
func TestKernelLog(t *testing.T) {
	for path, want := range map[string]string{"": "", "/dev/kmsg": "/run/gpu-dra-driver/kernel-log"} {
		daemonSet, container := pluginOf(t, valuesFrom("", "health.kernelLog="+path))
		if got := settings(t, container).HealthKernelLog; got != want {
			t.Errorf("%q: the plugin reads %q", path, got)
		}
		if got := mounts(t, daemonSet)["/run/gpu-dra-driver/kernel-log"]; got != path {
			t.Errorf("%q: %q is mounted", path, got)
		}
		for _, m := range container.VolumeMounts {
			if m.Name == "kernel-log" && !m.ReadOnly {
				t.Error("the log can be written")
			}
		}
	}
}
