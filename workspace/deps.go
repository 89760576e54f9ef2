package workspace

// A Dependency is how what a workspace depends on is installed: by which tool, and
// which file says so.
type Dependency struct {
	Manager string `json:"manager"`
	File    string `json:"file"`
	Command string `json:"command"` // for a POSIX shell, in the workspace; of no name that the workspace chose
	Bin     string `json:"bin,omitempty"`
}

// managers are what is looked for. Of those of one language the first counts: a
// lock file before what it was made from.
var managers = [...]struct {
	language string
	Dependency
}{
	{"node", Dependency{"npm", "package-lock.json", "npm ci --no-audit --no-fund", ""}},
	{"node", Dependency{"npm", "npm-shrinkwrap.json", "npm ci --no-audit --no-fund", ""}},
	{"node", Dependency{"pnpm", "pnpm-lock.yaml", "pnpm install --frozen-lockfile", ""}},
	{"node", Dependency{"yarn", "yarn.lock", "yarn install --immutable || yarn install --frozen-lockfile", ""}},
	{"node", Dependency{"bun", "bun.lock", "bun install --frozen-lockfile", ""}},
	{"node", Dependency{"bun", "bun.lockb", "bun install --frozen-lockfile", ""}},
	{"node", Dependency{"npm", "package.json", "npm install --no-audit --no-fund", ""}},

	{"python", Dependency{"uv", "uv.lock", "uv sync --frozen", ".venv/bin"}},
	{"python", Dependency{"poetry", "poetry.lock", "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install --no-interaction",
		".venv/bin"}},
	{"python", Dependency{"pipenv", "Pipfile.lock", "PIPENV_VENV_IN_PROJECT=1 pipenv sync", ".venv/bin"}},
	{"python", Dependency{"conda", "environment.yml", "conda env create -q -p ./.conda -f environment.yml", ".conda/bin"}},
	{"python", Dependency{"conda", "environment.yaml", "conda env create -q -p ./.conda -f environment.yaml",
		".conda/bin"}},
	{"python", Dependency{"pip", "requirements.txt",
		venv + ".venv/bin/python -m pip install -q --disable-pip-version-check -r requirements.txt", ".venv/bin"}},
	{"python", Dependency{"pip", "pyproject.toml",
		venv + ".venv/bin/python -m pip install -q --disable-pip-version-check -e .", ".venv/bin"}},
	{"python", Dependency{"pip", "setup.py", venv + ".venv/bin/python -m pip install -q --disable-pip-version-check -e .",
		".venv/bin"}},

	{"go", Dependency{"go", "go.mod", "go mod download", ""}},
	{"rust", Dependency{"cargo", "Cargo.lock", "cargo fetch --locked", ""}},
	{"rust", Dependency{"cargo", "Cargo.toml", "cargo fetch", ""}},
	{"java", Dependency{"maven", "pom.xml", "mvn -B -q dependency:go-offline", ""}},
	{"java", Dependency{"gradle", "build.gradle", "gradle -q --no-daemon dependencies", ""}},
	{"java", Dependency{"gradle", "build.gradle.kts", "gradle -q --no-daemon dependencies", ""}},
	{"ruby", Dependency{"bundler", "Gemfile", "BUNDLE_PATH=vendor/bundle bundle install", ""}},
	{"php", Dependency{"composer", "composer.json", "composer install --no-interaction --no-progress", ""}},
	{"elixir", Dependency{"mix", "mix.exs", "mix deps.get", ""}},
	{"dart", Dependency{"pub", "pubspec.yaml", "dart pub get", ""}},
	{"swift", Dependency{"swift", "Package.swift", "swift package resolve", ""}},
}

// venv makes a virtual environment where the workspace has none.
const venv = "{ test -x .venv/bin/python || python3 -m venv .venv; } && "

// Dependencies finds out what a workspace depends on from the names of the files
// at its top. What those hold is for the tools to read, in the sandbox.
func Dependencies(has func(name string) bool) []Dependency {
	var out []Dependency
	done := ""
	for i := range managers {
		m := &managers[i]
		if m.language != done && has(m.File) {
			out = append(out, m.Dependency)
			done = m.language
		}
	}
	return out
}
