// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"

	"github.com/spf13/pflag"
)

// runner runs the agent as a service of systemd, which needs to know nothing of it.
type runner struct{}

func (*runner) addFlags(*pflag.FlagSet) {}

// start calls the function that calls run.
func (*runner) start(ctx context.Context, _ *Options, run func(context.Context) error) error {
	return run(ctx)
}

// lastStateDirectory returns the state directory of the last agent of this boot that could load its
// configuration, empty if there is none.
func lastStateDirectory(ctx context.Context) string { return lastDirectory(ctx, directoryFile) }

func (*runner) run(ctx context.Context, o *Options) error {
	return runService(ctx, o)
}
