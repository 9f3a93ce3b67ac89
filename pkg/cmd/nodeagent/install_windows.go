/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
