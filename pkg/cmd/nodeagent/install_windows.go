// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"

	"haulout.dev/haulout/pkg/agent/windows"
)

// platformServices installs and removes the service of Windows.
func platformServices(o *Options) services {
	return services{
		note:    "\n\nOn Windows the agent is experimental: no test has run on a real Windows.",
		install: installService,
		pending: func(context.Context) (bool, error) { return windows.Pending() },
		uninstall: func(ctx context.Context) error {
			c, err := o.Load()
			if err != nil {
				return err
			}
			return windows.Uninstall(ctx, c.StateDirectory)
		},
	}
}

func installService(ctx context.Context, i *installation) (bool, error) {
	w := windows.Installation{Binary: i.binary, Args: append([]string{i.args[0], "--windows-service"}, i.args[1:]...)}
	if i.content != nil {
		w.Files = []windows.File{{Path: i.path, Content: i.content}}
	}
	return windows.Install(ctx, w)
}
