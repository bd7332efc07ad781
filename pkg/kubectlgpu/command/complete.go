package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// completionTime is how long a shell may wait for names.
const completionTime = 3 * time.Second

// completing makes the completion of at most so many arguments by names of what the source has. A
// source that cannot be read completes nothing: a shell is no place for errors.
func (s *source) completing(most int, names func(*source, *state.State, []string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		parent := cmd.Context()
		if parent == nil {
			parent = context.Background()
		}
		ctx, cancel := context.WithTimeout(parent, completionTime)
		defer cancel()
		found := &state.State{}
		// The first word of a kind and a name needs no look at the source.
		if len(args) == most-1 {
			loaded, err := s.load(ctx)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			found = loaded
		}
		all := names(s, found, args)
		all = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !strings.HasPrefix(name, begun) })
		slices.Sort(all)
		return slices.Compact(all), cobra.ShellCompDirectiveNoFileComp
	}
}

// devicesAndNodes are what describe takes.
func devicesAndNodes(from *source, s *state.State, _ []string) []string {
	names := slices.Clone(s.NodeNames())
	for _, d := range s.Devices() {
		if from.driver == "" || d.ID.Driver == from.driver {
			names = append(names, d.ID.Name)
		}
	}
	return names
}

// podsAndClaims are a kind, and then the names of that kind in the namespace; of pods those that
// have claims or ask for an extended resource.
func podsAndClaims(from *source, s *state.State, args []string) []string {
	if len(args) == 0 {
		return []string{kindClaim, kindPod}
	}
	var names []string
	switch kindOf(args[0]) {
	case kindPod:
		for _, p := range s.Pods {
			if p.Namespace == from.namespace() && (len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil) {
				names = append(names, p.Name)
			}
		}
	case kindClaim:
		for _, c := range s.Claims {
			if c.Namespace == from.namespace() {
				names = append(names, c.Name)
			}
		}
	}
	return names
}
